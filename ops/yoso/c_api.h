/* What YosoAttention adds to the C ABI (ops/c_api.h): its gradients, for training. */
#ifndef ATTENUATOR_YOSO_C_API_H
#define ATTENUATOR_YOSO_C_API_H

#include "ops/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The gradients of YosoAttention with normalize = 0 and the hashes of the forward pass, on
 * num_threads threads of the CPU, in memory linear in the length. By the paper's eq. 4, in time
 * linear in the length; or, where `collided` is not 0, by *YOSO of its appendix: the true
 * derivative of each pair that collides, with `softening` (0 to 1) added to the square in its root.
 * `rows`: query, key, value and the gradient by the output, which are read, then the gradients by
 * query, key and value, which are written; num_rows rows each. `hashing`: cu_seqlens, num_hashes (1
 * and more) and seed, as the operator's inputs; attributes likewise, of which num_heads, hash_bits,
 * layer, hash and norm_lift count. Returns 0, or 1 on an error. */
int32_t attenuator_yoso_gradient(const attenuator_rows* rows, int64_t num_rows,
                                 const attenuator_tensor* hashing,
                                 const attenuator_attribute* attributes, int32_t num_attributes,
                                 int32_t collided, float softening, int32_t num_threads);

#ifdef __cplusplus
}
#endif

#endif /* ATTENUATOR_YOSO_C_API_H */

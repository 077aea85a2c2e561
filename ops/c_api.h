/* The operators without ONNX Runtime: pointers, sizes and names, for ctypes.
 *
 * The torch.library operators of export, training and tests call these, so that they run the very
 * kernels that serve. An operator brings further functions in ops/<operator>/c_api.h. All functions
 * are thread-safe. A non-zero return is an error; attenuator_last_error() then says which, in this
 * thread. */
#ifndef ATTENUATOR_C_API_H
#define ATTENUATOR_C_API_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A row-major tensor. `data` is null and `rank` 0 where an optional input or output is left out. */
typedef struct {
  void* data;
  int32_t rank;
  int32_t dtype; /* 0 float, 1 int32, 2 int64, 3 float16, 4 bfloat16, 5 uint8 */
  int64_t shape[2];
} attenuator_tensor;

/* A node attribute. `kind` says which of the three values counts. */
typedef struct {
  const char* name;
  int32_t kind; /* 0 int, 1 float, 2 string */
  float float_value;
  int64_t int_value;
  const char* string_value;
} attenuator_attribute;

/* Runs operator `name` (such as "YosoAttention") once on num_threads threads.
 * Inputs stand in the node's order. Each output's `data` points to memory for `shape`, which must
 * be the shape the operator gives. Returns 0, or 1 on an error. */
int32_t attenuator_run(const char* name, const attenuator_tensor* inputs, int32_t num_inputs,
                       const attenuator_tensor* outputs, int32_t num_outputs,
                       const attenuator_attribute* attributes, int32_t num_attributes,
                       int32_t num_threads);

/* Memory of the device, aligned to 256 bytes, or null. It must last until the work of the call has
 * ended on the device. */
typedef void* (*attenuator_allocate)(void* state, int64_t bytes);

/* As attenuator_run, on the calling thread's current CUDA device: queues the work on `stream` (a
 * cudaStream_t) and returns. cu_seqlens, knobs and seed are pointers to host memory, all other
 * tensors lie on the device, start at a multiple of 16 bytes and are all of the first input's
 * dtype: 0, 3 or 4. A host operator (KeptLengths) has all its tensors in host memory and is run
 * before this returns. */
int32_t attenuator_run_cuda(const char* name, const attenuator_tensor* inputs, int32_t num_inputs,
                            const attenuator_tensor* outputs, int32_t num_outputs,
                            const attenuator_attribute* attributes, int32_t num_attributes,
                            void* stream, attenuator_allocate allocate, void* state);

/* Float rows of all heads of a packed batch, `channels` a head: `row_stride` floats from a row to
 * the next, `head_stride` from a head to the next, channels side by side. */
typedef struct {
  float* data;
  int64_t row_stride;
  int64_t head_stride;
  int64_t channels;
} attenuator_rows;

/* What attenuator_run_cuda runs on: "cuda"; "cuda_on_host", the test device that runs the same
 * kernels' code on the host (ops/common/cuda/on_host.h); null where it was built for neither. */
const char* attenuator_device(void);

/* The calling thread's last error; empty where there was none. */
const char* attenuator_last_error(void);

/* The best instruction set that operator `name` uses on the CPU: "avx2", "avx512", "avx512_vnni" or
 * "avx512_amx"; null where the processor is too old. Only naming an operator that always uses AMX
 * asks the system for it; attention with int8_products, which may, is named by what it uses
 * without. */
const char* attenuator_isa(const char* name);

#ifdef __cplusplus
}
#endif

#endif /* ATTENUATOR_C_API_H */

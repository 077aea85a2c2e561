// What marks a function for both sides: nvcc compiles it for host and device, a C++ compiler as is.
#pragma once

#ifdef __CUDACC__
#define ATTENUATOR_HOST_DEVICE __host__ __device__
#else
#define ATTENUATOR_HOST_DEVICE
#endif

/* Stands in for the CUDA toolkit's header of this name while declarations are generated: two opaque pointers are all that is used. */
#ifndef QKVAULT_STUB_CUDA_RUNTIME_API_H
#define QKVAULT_STUB_CUDA_RUNTIME_API_H
typedef __SIZE_TYPE__ size_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUgraph_st *cudaGraph_t;
#endif

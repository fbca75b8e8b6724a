# The CUDA build: our kernels, libtorch's CUDA half, NCCL from the wheel.
# scripts/configure passes CMAKE_CUDA_COMPILER (nvcc from the pinned wheels, or the machine's own 13.x).
# -DTAUTLINE_CUDA_ARCHITECTURES="80;90a" for other cards too; kernels for Hopper alone (*_sm90*.cu, *_sm90/*.cu) are
# always 90a.
set(TAUTLINE_CUDA_ARCHITECTURES 90a CACHE STRING "architectures of the CUDA kernels, from 80")
set(CMAKE_CUDA_ARCHITECTURES ${TAUTLINE_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # the wheel's shared libcudart, the one that libtorch loads
get_filename_component(TAUTLINE_CUDA_ROOT ${CMAKE_CUDA_COMPILER} DIRECTORY)
# nvcc looks for its libraries in lib64, the wheels call it lib; cmake's first program links them.
set(ENV{LIBRARY_PATH} "${TAUTLINE_CUDA_ROOT}/../lib:$ENV{LIBRARY_PATH}")
enable_language(CUDA)
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} --expt-relaxed-constexpr --expt-extended-lambda -lineinfo")

file(GLOB TAUTLINE_CUDART ${TAUTLINE_SITE}/nvidia/*/lib/libcudart.so.13)
file(GLOB TAUTLINE_NCCL_INCLUDE ${TAUTLINE_SITE}/nvidia/nccl/include)
set(TAUTLINE_CUDA_INCLUDE ${TAUTLINE_CUDA_ROOT}/../include)
target_include_directories(tautline_torch SYSTEM INTERFACE ${TAUTLINE_CUDA_INCLUDE}
                           ${TAUTLINE_NCCL_INCLUDE})
target_compile_definitions(tautline_torch INTERFACE USE_C10D_NCCL USE_CUDA)
target_link_libraries(tautline_torch INTERFACE ${TORCH_LIB}/libtorch_cuda.so
                      ${TORCH_LIB}/libc10_cuda.so ${TAUTLINE_CUDART})
include_directories(SYSTEM ${TAUTLINE_CUDA_INCLUDE})  # kernels/ includes cuda_runtime.h, no torch
link_libraries(${TAUTLINE_CUDART})

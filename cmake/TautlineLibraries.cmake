# Imported targets for what Debian and the pinned Python environment provide. The wheels' own CMake files are
# not used: find_package(Torch) stops where there is no CUDA toolkit, and pyarrow ships none.
find_package(Threads REQUIRED)

find_package(PkgConfig REQUIRED)
pkg_check_modules(YAML_CPP REQUIRED IMPORTED_TARGET yaml-cpp)
add_library(yaml-cpp::yaml ALIAS PkgConfig::YAML_CPP)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
add_library(xxhash::xxhash ALIAS PkgConfig::XXHASH)
find_package(nlohmann_json REQUIRED)

if(TAUTLINE_TESTS)
  find_package(GTest REQUIRED)
  find_library(TAUTLINE_RAPIDCHECK rapidcheck REQUIRED)
endif()

if(NOT TAUTLINE_TORCH)
  return()
endif()
find_package(CLI11 REQUIRED)
if(NOT EXISTS ${TAUTLINE_SITE}/torch/include)
  message(FATAL_ERROR "TAUTLINE_SITE=${TAUTLINE_SITE} holds no torch: run scripts/setup, or "
                      "configure through scripts/configure")
endif()

# libtorch, CPU half always, CUDA half where asked. Headers as system headers: their warnings are not ours.
set(TORCH_LIB ${TAUTLINE_SITE}/torch/lib)
add_library(tautline_torch INTERFACE)
add_library(tautline::torch ALIAS tautline_torch)
target_include_directories(tautline_torch SYSTEM INTERFACE
  ${TAUTLINE_SITE}/torch/include ${TAUTLINE_SITE}/torch/include/torch/csrc/api/include)
# libstdc++ first: libtorch.so exports parts of std::filesystem (an old static copy), whose remove_all calls a
# null pointer; the loader takes the first library that has a symbol.
target_link_libraries(tautline_torch INTERFACE stdc++ ${TORCH_LIB}/libtorch.so ${TORCH_LIB}/libtorch_cpu.so
                      ${TORCH_LIB}/libc10.so Threads::Threads)
target_link_options(tautline_torch INTERFACE -Wl,-rpath,${TORCH_LIB} -Wl,--no-as-needed)
target_compile_definitions(tautline_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
# at::parallel_for is a template: without OpenMP in our own files it runs on one thread, silently. The
# runtime is the one that libtorch brings along, so that there is one pool of threads.
target_compile_options(tautline_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
target_link_libraries(tautline_torch INTERFACE ${TORCH_LIB}/libgomp.so.1)
# libtorch_cpu and libtorch_cuda need the CUDA libraries that stand in the wheel's neighbours.
file(GLOB TAUTLINE_NVIDIA_LIBS ${TAUTLINE_SITE}/nvidia/*/lib)
foreach(dir ${TAUTLINE_NVIDIA_LIBS})
  target_link_options(tautline_torch INTERFACE -Wl,-rpath,${dir} -Wl,-rpath-link,${dir})
endforeach()

# c10d's Gloo process group is in libtorch, its headers are Debian's (declarations only; do not link libgloo).
add_library(tautline_c10d INTERFACE)
add_library(tautline::c10d ALIAS tautline_c10d)
target_link_libraries(tautline_c10d INTERFACE tautline_torch)

# Arrow and Parquet from pyarrow's wheel.
add_library(tautline_arrow INTERFACE)
add_library(tautline::arrow ALIAS tautline_arrow)
file(GLOB TAUTLINE_ARROW_SO ${TAUTLINE_SITE}/pyarrow/libarrow.so.[0-9]*00
                            ${TAUTLINE_SITE}/pyarrow/libparquet.so.[0-9]*00)
target_include_directories(tautline_arrow SYSTEM INTERFACE ${TAUTLINE_SITE}/pyarrow/include)
target_link_libraries(tautline_arrow INTERFACE ${TAUTLINE_ARROW_SO})
target_link_options(tautline_arrow INTERFACE -Wl,-rpath,${TAUTLINE_SITE}/pyarrow)

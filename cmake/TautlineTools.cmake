# Compiler cache, linker and warnings, where they exist.
find_program(TAUTLINE_CCACHE ccache)
if(TAUTLINE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TAUTLINE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${TAUTLINE_CCACHE})
endif()
find_program(TAUTLINE_MOLD mold)
if(TAUTLINE_MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_link_options(-fuse-ld=mold)
endif()
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
                    $<$<COMPILE_LANGUAGE:CXX>:-Wno-unused-parameter>)
set_property(GLOBAL PROPERTY JOB_POOLS link=2)
set(CMAKE_JOB_POOL_LINK link)

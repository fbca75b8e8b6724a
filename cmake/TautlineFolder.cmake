# tautline_folder(NAME USES folders-or-targets...)
# One static library tautline_NAME from src/tautline/NAME, and one test program test_NAME from tests/NAME.
# Files are found by their place, at most one folder down, so adding one needs no edit here.
#   *_cpu.cpp   compiled once for each instruction set (see tautline_isa below)
#   *.cu        only in the CUDA build
#   *_sm90*.cu, *_sm90/*.cu  of those, for Hopper alone and with CUTLASS's headers (see tautline_sm90 below)
include(GoogleTest)

# A fast CPU kernel is compiled twice, into namespaces v3 (AVX2, FMA) and v4 (AVX-512), with TAUTLINE_ISA as
# the namespace's name; kernels/isa.h picks one when the program runs.
function(tautline_isa target)
  foreach(isa v3 v4)
    add_library(${target}_${isa} OBJECT ${ARGN})
    target_include_directories(${target}_${isa} PRIVATE ${CMAKE_SOURCE_DIR}/src)
    target_compile_options(${target}_${isa} PRIVATE -march=x86-64-${isa} -mprefer-vector-width=512
                                                    -ffp-contract=fast -fno-math-errno
                                                    -fno-trapping-math)
    target_compile_definitions(${target}_${isa} PRIVATE TAUTLINE_ISA=${isa})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${isa}>)
  endforeach()
endfunction()

# Kernels of wgmma and TMA exist for sm_90a only, whatever the other kernels are compiled for.
function(tautline_sm90 target)
  file(GLOB cutlass ${TAUTLINE_SITE}/cutlass_library/source/include)
  if(NOT cutlass)
    message(FATAL_ERROR "TAUTLINE_SITE=${TAUTLINE_SITE} holds no CUTLASS: run scripts/setup")
  endif()
  add_library(${target}_sm90 OBJECT ${ARGN})
  target_include_directories(${target}_sm90 PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_include_directories(${target}_sm90 SYSTEM PRIVATE ${cutlass})
  target_compile_definitions(${target}_sm90 PRIVATE TAUTLINE_CUDA)
  set_target_properties(${target}_sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_sm90>)
endfunction()

function(tautline_folder name)
  cmake_parse_arguments(ARG "" "" "USES" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/src/tautline/${name})
  set(target tautline_${name})
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.cpp ${dir}/*/*.cpp)
  set(isa_sources ${sources})
  list(FILTER isa_sources INCLUDE REGEX "_cpu\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_cpu\\.cpp$|/main\\.cpp$")
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${dir}/*.cu ${dir}/*/*.cu)
  set(sm90_sources ${cuda_sources})
  list(FILTER sm90_sources INCLUDE REGEX "_sm90[^/]*(/[^/]*)?\\.cu$")
  list(FILTER cuda_sources EXCLUDE REGEX "_sm90[^/]*(/[^/]*)?\\.cu$")
  if(TAUTLINE_CUDA)
    list(APPEND sources ${cuda_sources})
  else()
    list(FILTER sources EXCLUDE REGEX "_cuda\\.cpp$")  # host code that only the CUDA build has
  endif()

  set(uses "")
  foreach(use ${ARG_USES})
    if(TARGET tautline_${use})
      list(APPEND uses tautline_${use})
    else()
      list(APPEND uses ${use})
    endif()
  endforeach()

  if(sources OR isa_sources)
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
    if(isa_sources)
      tautline_isa(${target} ${isa_sources})
    endif()
    if(TAUTLINE_CUDA AND sm90_sources)
      tautline_sm90(${target} ${sm90_sources})
    endif()
    if(NOT sources)
      set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
    endif()
  else()
    add_library(${target} INTERFACE)  # headers only, or nothing yet
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${target} ${scope} ${uses})
  if(TAUTLINE_CUDA)
    target_compile_definitions(${target} ${scope} TAUTLINE_CUDA)
  endif()

  if(NOT TAUTLINE_TESTS)
    return()
  endif()
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${name}/*_test.cpp
       ${CMAKE_SOURCE_DIR}/tests/${name}/*/*_test.cpp)
  if(tests)
    add_executable(test_${name} ${tests})
    target_link_libraries(test_${name} PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,${target}> GTest::gtest_main
                          GTest::gmock ${TAUTLINE_RAPIDCHECK})
    target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_compile_definitions(test_${name} PRIVATE TAUTLINE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                               TAUTLINE_BINARY_DIR="${CMAKE_BINARY_DIR}")
    # tests/NAME/*_program.cpp: programs that the tests start (build/NAME_*_program).
    file(GLOB programs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${name}/*_program.cpp)
    foreach(source ${programs})
      get_filename_component(program ${source} NAME_WE)
      add_executable(${name}_${program} ${source})
      target_link_libraries(${name}_${program} PRIVATE ${target})
      add_dependencies(test_${name} ${name}_${program})
    endforeach()
    # passive: OpenMP threads that spin while others want the core make tests many times slower on a busy machine.
    gtest_discover_tests(test_${name} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST
                         PROPERTIES TIMEOUT 300 ENVIRONMENT OMP_WAIT_POLICY=passive)
  endif()
endfunction()

# The program: build/NAME from src/tautline/FOLDER/main.cpp's library, with every operator registration kept.
function(tautline_program name folder)
  if(NOT EXISTS ${CMAKE_SOURCE_DIR}/src/tautline/${folder}/main.cpp)
    return()
  endif()
  add_executable(${name}_program ${CMAKE_SOURCE_DIR}/src/tautline/${folder}/main.cpp)
  target_link_libraries(${name}_program PRIVATE tautline_${folder}
                        $<LINK_LIBRARY:WHOLE_ARCHIVE,tautline_ops>)
  set_target_properties(${name}_program PROPERTIES OUTPUT_NAME ${name}
                        RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  target_compile_definitions(${name}_program PRIVATE TAUTLINE_VERSION="${PROJECT_VERSION}")
  if(TARGET test_${folder})
    add_dependencies(test_${folder} ${name}_program)  # those tests run the program
  endif()
endfunction()

# libtautline_ops.so: the operators for torch.ops.load_library.
function(tautline_operators target folder)
  add_library(${target} SHARED $<TARGET_OBJECTS:tautline_${folder}>)
  target_link_libraries(${target} PRIVATE tautline_${folder})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME tautline_${folder} LINKER_LANGUAGE CXX)
endfunction()

# tautline_python_tests(FOLDER VARIABLE TARGET): tests/FOLDER/test_*.py, each a ctest, with the path of the
# target's file in the variable.
function(tautline_python_tests folder variable target)
  if(NOT TAUTLINE_TESTS OR NOT TARGET ${target})
    return()
  endif()
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/test_*.py)
  cmake_path(SET environment NORMALIZE ${TAUTLINE_SITE}/../../..)
  foreach(test ${tests})
    get_filename_component(name ${test} NAME_WE)
    add_test(NAME ${folder}.${name}
             COMMAND ${environment}/bin/python -m pytest -q -p no:cacheprovider ${test})
    set(variables "${variable}=$<TARGET_FILE:${target}>" PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive)
    # 5: pytest found nothing to run, because the whole file skips itself (no GPU)
    set_tests_properties(${folder}.${name} PROPERTIES TIMEOUT 600 ENVIRONMENT "${variables}"
                         SKIP_RETURN_CODE 5)
  endforeach()
endfunction()

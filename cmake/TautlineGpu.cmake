# test_gpu: tests/gpu/*_test.cpp compare the CUDA kernels with the CPU's. Built with the CUDA build, run by
# `make test-gpu` where a GPU is; without torch, so that the program travels alone to a GPU machine.
function(tautline_gpu_tests)
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/gpu/*_test.cpp)
  if(NOT TAUTLINE_TESTS OR NOT tests)
    return()
  endif()
  add_executable(test_gpu ${tests})
  target_link_libraries(test_gpu PRIVATE tautline_kernels GTest::gtest_main ${TAUTLINE_RAPIDCHECK})
  target_include_directories(test_gpu PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_options(test_gpu PRIVATE -Wl,--as-needed)
endfunction()

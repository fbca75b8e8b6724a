# tautline_bench(NAME USES folders...): bench/NAME.cpp (and bench/NAME.cu) as bench_NAME. Built on demand, or
# all of them by the target `benches`.
add_custom_target(benches)

function(tautline_bench name)
  cmake_parse_arguments(ARG "" "" "USES" ${ARGN})
  file(GLOB sources ${CMAKE_SOURCE_DIR}/bench/${name}.cpp ${CMAKE_SOURCE_DIR}/bench/${name}.cu)
  add_executable(bench_${name} EXCLUDE_FROM_ALL ${sources})
  foreach(use ${ARG_USES})
    if(use STREQUAL "ops")  # keep every operator registration
      target_link_libraries(bench_${name} PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,tautline_ops>)
    elseif(TARGET tautline_${use})
      target_link_libraries(bench_${name} PRIVATE tautline_${use})
    else()
      target_link_libraries(bench_${name} PRIVATE ${use})
    endif()
  endforeach()
  add_dependencies(benches bench_${name})
endfunction()

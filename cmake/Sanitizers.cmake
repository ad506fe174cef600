# SPDX-License-Identifier: Apache-2.0
# A build under sanitizers, chosen by MEGADP_SANITIZE for everything in the tree. Every finding ends the program with an error.
# Under TSan -O1: its run takes two thirds of -O0's time, and the build little more. Under ASan -O0: -O1 builds for twice as long, which its
# run does not give back; what computes there asks for -O1 itself. -g1: names and lines are all that reports show, and the whole of -g takes a
# third of the compiler's time.

# A twentieth of g++'s time goes into looking for memory that it could use again. This is for tests and for what sanitizers build, not for the
# library, which others compile too, with less memory.
set(MEGADP_MORE_MEMORY $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1000000>)
if(MEGADP_SANITIZE)
  if(MEGADP_SANITIZE STREQUAL "address")
    set(kinds address,undefined)
    set(optimized -O0)
  elseif(MEGADP_SANITIZE STREQUAL "thread")
    set(kinds thread)
    set(optimized -O1)
  else()
    message(FATAL_ERROR "MEGADP_SANITIZE is '${MEGADP_SANITIZE}'; it must be empty, 'address' (with undefined behaviour) or 'thread'")
  endif()
  add_compile_options(-fsanitize=${kinds} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 ${optimized})
  add_compile_options(${MEGADP_MORE_MEMORY})
  # Many programs are linked, each of them large: mold takes less than half of the time of gold, which comes with binutils and takes a third
  # of ld's.
  find_program(MEGADP_MOLD ld.mold)
  find_program(MEGADP_GOLD ld.gold)
  mark_as_advanced(MEGADP_MOLD MEGADP_GOLD)
  if(MEGADP_MOLD)
    add_link_options(-fuse-ld=mold)
  elseif(MEGADP_GOLD)
    add_link_options(-fuse-ld=gold)
  endif()
  add_link_options(-fsanitize=${kinds})
endif()

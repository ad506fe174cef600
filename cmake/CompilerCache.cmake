# SPDX-License-Identifier: Apache-2.0
# Uses ccache where it is installed and nobody has chosen a launcher.
find_program(MEGADP_CCACHE ccache)
mark_as_advanced(MEGADP_CCACHE)
if(MEGADP_CCACHE)
  foreach(language C CXX)
    if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER ${MEGADP_CCACHE})
    endif()
  endforeach()
endif()

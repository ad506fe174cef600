# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where, and how others find it: find_package(megadp) with target megadp::megadp, and pkg-config megadp.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(
  TARGETS megadp
  EXPORT megadpTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${public_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/abi.json DESTINATION ${CMAKE_INSTALL_DATADIR}/megadp)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET megadp_cuda) # beside libmegadp, where it is looked for; if only that was built, without
  install(TARGETS megadp_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
endif()
if(TARGET megadp_tool)
  install(TARGETS megadp_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/megadp)
install(EXPORT megadpTargets NAMESPACE megadp:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/megadpConfig.cmake.in ${CMAKE_BINARY_DIR}/megadpConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
# Until 1.0 a minor release may change the ABI.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/megadpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/megadpConfig.cmake ${CMAKE_BINARY_DIR}/megadpConfigVersion.cmake DESTINATION ${package_dir})

file(RELATIVE_PATH to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
# Some packagers give whole paths, and those may lie outside the prefix.
foreach(folder LIBDIR INCLUDEDIR)
  file(RELATIVE_PATH to_${folder} ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_${folder}})
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/megadp.pc.in ${CMAKE_BINARY_DIR}/megadp.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/megadp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

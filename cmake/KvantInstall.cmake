# `cmake --install`: command, library, headers, plugins, pipelines and samples, a pkg-config file and a CMake package.
# Nothing in it holds the prefix, so that the tree can be moved afterwards.
include(CMakePackageConfigHelpers)

install(TARGETS kvant_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS kvant kvant_headers EXPORT kvantTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_SKIP)
install(TARGETS kvant LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_ONLY)
install(DIRECTORY core/include/kvant DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY pipelines samples DESTINATION ${CMAKE_INSTALL_DATADIR}/kvant)

file(RELATIVE_PATH KVANT_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(core/kvant.pc.in kvant.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvant.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvant)
configure_package_config_file(cmake/kvantConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/kvantConfig.cmake
  INSTALL_DESTINATION ${package_dir} PATH_VARS CMAKE_INSTALL_BINDIR)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/kvantConfigVersion.cmake
  COMPATIBILITY SameMajorVersion)
install(EXPORT kvantTargets NAMESPACE kvant:: DESTINATION ${package_dir})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvantConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/kvantConfigVersion.cmake
  cmake/KvantPlugin.cmake cmake/KvantCuda.cmake cmake/zstd.cmake cmake/plugin.map DESTINATION ${package_dir})

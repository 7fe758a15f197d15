//! What mlx-c's CMakeLists.txt says: the MLX release it is written for, and its source files.

/// The MLX release, for example `0.32.2`.
pub(crate) fn mlx_version(cmake: &str) -> Option<&str> {
    cmake.lines().find_map(|line| {
        let tag = line.trim().strip_prefix("GIT_TAG v")?;
        let version = tag.split(|c: char| c == ')' || c.is_whitespace()).next()?;
        (version.starts_with(|c: char| c.is_ascii_digit())).then_some(version)
    })
}

/// The C++ files of the library, relative to CMakeLists.txt and in its order; what is commented out is left out.
pub(crate) fn sources(cmake: &str) -> Vec<&str> {
    cmake
        .lines()
        .filter_map(|line| line.trim().strip_prefix("${CMAKE_CURRENT_LIST_DIR}/"))
        .map(|file| file.trim_end_matches(')').trim_end())
        .filter(|file| file.ends_with(".cpp"))
        .collect()
}

#[cfg(test)]
mod tests {
    //! If these fail, the next mlx-c is paired with a wrong MLX, or linked with functions missing.
    use super::{mlx_version, sources};

    const CMAKE: &str = "
cmake_minimum_required(VERSION 3.16)
if(NOT MLX_C_VERSION)
  set(MLX_C_VERSION 0.7.0)
endif()
  FetchContent_Declare(
    mlx
    GIT_REPOSITORY \"https://github.com/ml-explore/mlx.git\"
    GIT_TAG v0.32.2)
set(mlxc-src
    ${CMAKE_CURRENT_LIST_DIR}/mlx/c/array.cpp
    # ${CMAKE_CURRENT_LIST_DIR}/mlx/c/object.cpp
    ${CMAKE_CURRENT_LIST_DIR}/mlx/c/version.cpp)
add_library(mlxc ${mlxc-src})
    ${CMAKE_CURRENT_LIST_DIR}/mlx/c/not_code.h
";

    #[test]
    fn the_version_is_the_tag_of_mlx_and_not_of_mlx_c() {
        assert_eq!(mlx_version(CMAKE), Some("0.32.2"));
        assert_eq!(mlx_version("GIT_TAG v0.33.0\n)"), Some("0.33.0"));
        assert_eq!(mlx_version("GIT_TAG v1.0.0 EXCLUDE_FROM_ALL)"), Some("1.0.0"));
    }

    #[test]
    fn a_file_without_a_tagged_release_has_no_version() {
        assert_eq!(mlx_version("GIT_TAG main)"), None);
        assert_eq!(mlx_version("GIT_TAG vnext)"), None);
        assert_eq!(mlx_version(""), None);
    }

    #[test]
    fn sources_are_the_listed_files_without_the_commented_one() {
        assert_eq!(sources(CMAKE), ["mlx/c/array.cpp", "mlx/c/version.cpp"]);
    }
}

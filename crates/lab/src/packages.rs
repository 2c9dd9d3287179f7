// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fetches Debian programs that guests run and that this system lacks. The packages are unpacked
//! into the cache; the system's packages do not change. A package is fetched once, without a time
//! limit.

use std::path::PathBuf;

use crate::LabError;
use crate::apt::{Apt, debian_release};
use crate::cache::LabCache;

/// Kind of unpacked packages in the cache.
const KIND: &str = "packages";

/// Returns a folder with the unpacked files of a package and of its dependencies that this system
/// lacks. The packages come from this system's Debian release, and are fetched if they are not
/// cached.
///
/// # Errors
/// If the package is not available.
pub fn unpacked(cache: &LabCache, package: &str) -> Result<PathBuf, LabError> {
    cache.get_or_add(KIND, package, |into| {
        let release = debian_release()?;
        eprintln!("lab: fetching the package {package} of {release}");
        let apt = Apt::with_suites(&[&release], cache.scratch()?)?;
        apt.unpack_with_needs(package, &release, into)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_packages_are_not_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let cache = LabCache::open(Some(dir.path())).unwrap();
        let entry = cache.entry(KIND, "erlang-base");
        std::fs::create_dir_all(&entry).unwrap();
        assert_eq!(unpacked(&cache, "erlang-base").unwrap(), entry);
    }
}

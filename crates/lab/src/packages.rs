// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of Debian's that guests run and that this system has not installed: fetched
//! and unpacked beside the kernels. The system's packages stay as they are.

use std::path::PathBuf;

use crate::LabError;
use crate::apt::{Apt, debian_release};
use crate::cache::Cache;

/// What they lie under in the cache.
const KIND: &str = "packages";

/// The folder into which a package of this system's release was unpacked, with what it
/// needs and the system has not got; fetched when it is not here.
///
/// # Errors
/// When it is not to be had.
pub fn unpacked(cache: &Cache, package: &str) -> Result<PathBuf, LabError> {
    cache.get_or_add(KIND, package, |into| {
        let release = debian_release()?;
        eprintln!("lab: fetching {package} of {release}");
        let apt = Apt::with_suites(&[&release], cache.scratch()?)?;
        apt.unpack_with_needs(package, &release, into)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_here_is_not_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(dir.path())).unwrap();
        let entry = cache.entry(KIND, "erlang-base");
        std::fs::create_dir_all(&entry).unwrap();
        assert_eq!(unpacked(&cache, "erlang-base").unwrap(), entry);
    }
}

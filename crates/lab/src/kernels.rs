// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds kernels with sched_ext in Debian's archive, and fetches them into the cache.
//!
//! The kernels of Debian's stable suites have no sched_ext, but those of the suites
//! trixie-backports and sid have. The releases in these suites change weekly, and packages of older
//! releases disappear one by one. Therefore no release is hard-coded:
//!
//! 1. Query apt for all releases of which all packages are available.
//! 2. Select the newest release of the oldest series, and of the two newest series (such as 6.18
//!    and 7.2). These are the *test matrix*.
//! 3. Fetch and unpack the packages, and check the kernel's configuration.
//!
//! A cached kernel is never fetched again. A fetch has no time limit and is not retried. If some
//! kernels of the test matrix cannot be fetched, the other kernels are sufficient; without any
//! kernel, the last error is returned.
//!
//! Guests use the flavour for virtual machines (`cloud`), which has virtio file systems and
//! consoles built in and boots without an initramfs.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;

use crate::LabError;
use crate::apt::{Apt, Package};
use crate::cache::{LabCache, Lock};

/// Suites that contain kernels with sched_ext.
const SUITES: [&str; 2] = ["trixie-backports", "sid"];
/// Suffix of the names of packages of the flavour for virtual machines.
const FLAVOUR: &str = "-cloud-amd64";
/// Prefixes of the names of a kernel's packages. Up to series 6.18, a kernel consists of the first
/// package only.
const PARTS: [&str; 4] = [
    "linux-image-",
    "linux-base-",
    "linux-binary-",
    "linux-modules-",
];
/// Minimum size in bytes of an image package that contains a kernel. A smaller image package only
/// depends on the other packages.
const IMAGE_BYTES_LEAST: u64 = 1 << 20;
/// Options of the kernel that the lab requires.
const OPTIONS: [&str; 2] = ["CONFIG_SCHED_CLASS_EXT=y", "CONFIG_DEBUG_INFO_BTF=y"];
/// Kind of kernels with sched_ext in the cache.
const KIND: &str = "kernels";
/// Kind of kernels of Debian's stable releases in the cache. They are not part of the test matrix.
const STOCK_KIND: &str = "stock-kernels";

/// A cached kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// Release of the kernel, as printed by `uname -r`.
    pub release: String,
    /// Directory of the kernel's files.
    pub dir: PathBuf,
}

impl Kernel {
    /// Returns the series of the kernel: `7.2` for `7.2.13+deb14-cloud-amd64`.
    pub fn series(&self) -> String {
        series(&self.release).to_string()
    }

    pub(crate) fn vmlinuz(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.dir.join("config")
    }

    /// Returns the file of a module, given its path in the kernel's source tree; `None` if the
    /// kernel has no such module.
    pub(crate) fn module(&self, path: &str) -> Option<PathBuf> {
        let endings = ["", ".xz", ".zst"].into_iter();
        let mut files = endings.map(|end| self.dir.join(format!("modules/kernel/{path}.ko{end}")));
        files.find(|file| file.exists())
    }
}

/// Selection of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelChoice {
    /// The newest cached kernel.
    Newest,
    /// The oldest cached kernel.
    Oldest,
    /// The newest release of a series (`7.2`), or a single release, by its name.
    Named(String),
}

impl FromStr for KernelChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbered = text.starts_with(|c: char| c.is_ascii_digit());
        let plain = text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || ".+-~".contains(c));
        match text {
            "newest" => Ok(Self::Newest),
            "oldest" => Ok(Self::Oldest),
            _ if numbered && plain => Ok(Self::Named(text.to_owned())),
            _ => Err(
                "give a kernel series such as 7.2, a kernel release, newest, oldest or list"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for KernelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Newest => "newest",
            Self::Oldest => "oldest",
            Self::Named(name) => name,
        })
    }
}

/// A kernel that the archive contains.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ArchiveKernel {
    release: String,
    /// The packages of the kernel with their versions, as arguments for apt.
    packages: Vec<String>,
}

/// Returns the cached kernels with sched_ext, oldest first.
///
/// # Errors
/// If the folder of the cache cannot be read.
pub fn cached(cache: &LabCache) -> Result<Vec<Kernel>, LabError> {
    let names = cache.entries(KIND)?.into_iter();
    let mut kernels: Vec<Kernel> = names
        .map(|release| Kernel {
            dir: cache.entry(KIND, &release),
            release,
        })
        .collect();
    kernels.sort_by_key(|kernel| version(&kernel.release));
    Ok(kernels)
}

/// Returns the selected kernel. If a named kernel is not cached, fetches it. If no kernel is cached
/// and `wanted` is the newest or oldest kernel, fetches the whole test matrix.
///
/// # Errors
/// If the kernel is neither cached nor available in the archive.
pub fn find(cache: &LabCache, wanted: &KernelChoice) -> Result<Kernel, LabError> {
    if let Some(kernel) = pick(cached(cache)?, wanted) {
        return Ok(kernel);
    }
    let lock = cache.lock()?;
    let kernels = cached(cache)?;
    if let Some(kernel) = pick(kernels.clone(), wanted) {
        return Ok(kernel);
    }
    let apt = Apt::with_suites(&SUITES, cache.scratch()?)?;
    let offers = offers(&apt)?;
    let KernelChoice::Named(name) = wanted else {
        fetch_all(cache, &lock, &apt, matrix(&offers))?;
        return pick(cached(cache)?, wanted).ok_or_else(|| none(wanted, &offers));
    };
    let offer = offers.iter().rfind(|offer| is_named(&offer.release, name));
    fetch(
        cache,
        &lock,
        &apt,
        offer.ok_or_else(|| none(wanted, &offers))?,
    )
}

/// Fetches the test matrix if fewer than two series are cached, or if `update` is set. Returns all
/// cached kernels.
///
/// # Errors
/// If no kernel is available.
pub fn prepare(cache: &LabCache, update: bool) -> Result<Vec<Kernel>, LabError> {
    let enough = |kernels: &[Kernel]| {
        let first = kernels.first().map(Kernel::series);
        !update && kernels.iter().any(|kernel| Some(kernel.series()) != first)
    };
    if enough(&cached(cache)?) {
        return cached(cache);
    }
    let lock = cache.lock()?;
    if enough(&cached(cache)?) {
        return cached(cache);
    }
    let apt = Apt::with_suites(&SUITES, cache.scratch()?)?;
    let offers = offers(&apt)?;
    fetch_all(cache, &lock, &apt, matrix(&offers))?;
    match cached(cache)? {
        kernels if kernels.is_empty() => Err(none(&KernelChoice::Newest, &offers)),
        kernels => Ok(kernels),
    }
}

/// Returns the newest kernel of a stable release (`bookworm`, `trixie`), which may lack sched_ext.
/// The kernel is fetched if it is not in the cache.
///
/// # Errors
/// If the archive does not contain the kernel.
pub(crate) fn stock(cache: &LabCache, suite: &str) -> Result<Kernel, LabError> {
    let dir = cache.get_or_add(STOCK_KIND, suite, |into| {
        eprintln!("lab: fetching the kernel of {suite}");
        let apt = Apt::with_suites(&[suite], cache.scratch()?)?;
        // In releases up to trixie, the image package contains the whole kernel.
        let mut images: Vec<Package> = apt.packages(PARTS[0], FLAVOUR)?;
        images.retain(|image| image.bytes >= IMAGE_BYTES_LEAST);
        let release = |image: &Package| image.name[PARTS[0].len()..].to_owned();
        let image = images.into_iter().max_by_key(|one| version(&release(one)));
        let image = image.ok_or_else(|| LabError::Kernel {
            wanted: suite.to_owned(),
            reason: format!("the archive contains no package {}*{FLAVOUR}", PARTS[0]),
        })?;
        let scratch = cache.scratch()?;
        apt.unpack(
            &[format!("{}={}", image.name, image.version)],
            scratch.path(),
        )?;
        arrange(&release(&image), scratch.path(), into, &[])?;
        let path = into.join("release");
        fs::write(&path, release(&image)).map_err(LabError::file("writing", path))
    })?;
    let path = dir.join("release");
    let release = fs::read_to_string(&path).map_err(LabError::file("reading", path))?;
    Ok(Kernel { release, dir })
}

/// Returns the releases of which the archive contains all packages, oldest first.
///
/// # Errors
/// If the archive cannot be queried.
pub fn offered(cache: &LabCache) -> Result<Vec<String>, LabError> {
    let apt = Apt::with_suites(&SUITES, cache.scratch()?)?;
    Ok(offers(&apt)?
        .into_iter()
        .map(|offer| offer.release)
        .collect())
}

fn none(wanted: &KernelChoice, offers: &[ArchiveKernel]) -> LabError {
    let suites = SUITES.join(" and ");
    let names: Vec<&str> = offers.iter().map(|offer| offer.release.as_str()).collect();
    let reason = match names.is_empty() {
        true => {
            format!("Debian's {suites} currently contain no complete kernel for virtual machines")
        }
        false => format!(
            "Debian's {suites} contain only the kernels {}",
            names.join(", ")
        ),
    };
    LabError::Kernel {
        wanted: wanted.to_string(),
        reason,
    }
}

fn pick(kernels: Vec<Kernel>, wanted: &KernelChoice) -> Option<Kernel> {
    let mut kernels = kernels.into_iter();
    match wanted {
        KernelChoice::Oldest => kernels.next(),
        KernelChoice::Newest => kernels.next_back(),
        KernelChoice::Named(name) => kernels.rfind(|kernel| is_named(&kernel.release, name)),
    }
}

/// Returns whether a name matches a release: `7.2`, `7.2.13` and the full name match
/// `7.2.13+deb14-cloud-amd64`.
fn is_named(release: &str, name: &str) -> bool {
    let rest = release.strip_prefix(name);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Returns the kernels of which the archive contains all packages, oldest first.
fn offers(apt: &Apt) -> Result<Vec<ArchiveKernel>, LabError> {
    let mut parts = BTreeMap::new();
    for prefix in PARTS {
        for package in apt.packages(prefix, FLAVOUR)? {
            if let Some(release) = package.name.strip_prefix(prefix) {
                parts.insert((release.to_owned(), prefix), package);
            }
        }
    }
    Ok(complete(&parts))
}

fn complete(parts: &BTreeMap<(String, &'static str), Package>) -> Vec<ArchiveKernel> {
    let exact = |package: &Package| format!("{}={}", package.name, package.version);
    let images = parts.iter().filter(|((_, prefix), _)| *prefix == PARTS[0]);
    let offers = images.filter_map(|((release, _), image)| {
        let packages = if image.bytes >= IMAGE_BYTES_LEAST {
            vec![exact(image)]
        } else {
            let part = |prefix: &&'static str| parts.get(&(release.clone(), *prefix)).map(exact);
            PARTS[1..].iter().map(part).collect::<Option<_>>()?
        };
        Some(ArchiveKernel {
            release: release.clone(),
            packages,
        })
    });
    let mut offers: Vec<ArchiveKernel> = offers
        .filter(|offer| series(&offer.release) >= LEAST)
        .collect();
    offers.sort_by_key(|offer| version(&offer.release));
    offers
}

/// Returns the test matrix: the newest release of the oldest series and of the two newest series.
fn matrix(offers: &[ArchiveKernel]) -> Vec<&ArchiveKernel> {
    let newest: BTreeMap<KernelSeries, &ArchiveKernel> =
        offers.iter().map(|o| (series(&o.release), o)).collect();
    let newest: Vec<&ArchiveKernel> = newest.into_values().collect();
    let late = newest.len().saturating_sub(2).max(1).min(newest.len());
    newest[..newest.len().min(1)]
        .iter()
        .chain(&newest[late..])
        .copied()
        .collect()
}

fn fetch_all(
    cache: &LabCache,
    lock: &Lock,
    apt: &Apt,
    offers: Vec<&ArchiveKernel>,
) -> Result<(), LabError> {
    let mut last = Ok(());
    for offer in offers {
        if let Err(error) = fetch(cache, lock, apt, offer) {
            // The error is printed and does not end the loop, because the other kernels of the test
            // matrix may be sufficient.
            eprintln!("lab: {error}");
            last = Err(error);
        }
    }
    match cached(cache)?.is_empty() {
        true => last,
        false => Ok(()),
    }
}

fn fetch(
    cache: &LabCache,
    lock: &Lock,
    apt: &Apt,
    offer: &ArchiveKernel,
) -> Result<Kernel, LabError> {
    let release = &offer.release;
    let dir = cache.entry(KIND, release);
    if !dir.exists() {
        eprintln!("lab: fetching kernel {release}");
        cache.add(lock, KIND, release, |into| {
            let scratch = cache.scratch()?;
            apt.unpack(&offer.packages, scratch.path())?;
            arrange(release, scratch.path(), into, &OPTIONS)
        })?;
    }
    Ok(Kernel {
        release: release.clone(),
        dir,
    })
}

/// Moves the kernel, its configuration and its modules from the unpacked packages to the folder
/// `into`, and checks the kernel's options. The paths in the packages depend on the version.
fn arrange(release: &str, unpacked: &Path, into: &Path, options: &[&str]) -> Result<(), LabError> {
    let refuse = |reason: String| LabError::Kernel {
        wanted: release.to_owned(),
        reason,
    };
    let take = |name: &str, places: &[String]| {
        let mut found = places.iter().map(|place| unpacked.join(place));
        let from = found.find(|path| path.exists());
        let from =
            from.ok_or_else(|| refuse(format!("the packages of the kernel contain no {name}")))?;
        let to = into.join(name);
        fs::rename(&from, &to).map_err(LabError::file("moving", from))
    };
    let trees = ["usr/lib/modules", "lib/modules"].map(|tree| format!("{tree}/{release}"));
    for name in ["vmlinuz", "config"] {
        let mut places = vec![format!("boot/{name}-{release}")];
        places.extend(trees.iter().map(|tree| format!("{tree}/{name}")));
        take(name, &places)?;
    }
    let config = into.join("config");
    let config = fs::read_to_string(&config).map_err(LabError::file("reading", config))?;
    for option in options {
        if !config.lines().any(|line| line == *option) {
            return Err(refuse(format!(
                "the kernel was built without {option}, which the lab requires"
            )));
        }
    }
    take("modules", &trees)
}

/// The series of a kernel: its major and minor version number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct KernelSeries(u32, u32);

/// The first series with sched_ext.
const LEAST: KernelSeries = KernelSeries(6, 12);

impl fmt::Display for KernelSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

fn series(release: &str) -> KernelSeries {
    let (numbers, _) = version(release);
    KernelSeries(numbers[0], numbers[1])
}

/// Returns the sort key of a release: its numbers, then its name.
fn version(release: &str) -> ([u32; 3], String) {
    let end = release
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(release.len());
    let mut numbers = [0; 3];
    for (number, text) in numbers.iter_mut().zip(release[..end].split('.')) {
        *number = text.parse().unwrap_or(0);
    }
    (numbers, release.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(release: &str) -> Kernel {
        Kernel {
            release: release.to_owned(),
            dir: PathBuf::from(release),
        }
    }

    #[test]
    fn series_version_and_release_name_a_kernel() {
        let kernels = [
            "6.18.9+deb13-x",
            "7.2.9+deb13-x",
            "7.2.13+deb14-x",
            "7.10.1-x",
        ]
        .map(kernel);
        let picked = |wanted: &str| {
            let kernel = pick(kernels.to_vec(), &wanted.parse().unwrap());
            kernel.map(|kernel| kernel.release)
        };
        for (wanted, release) in [
            ("7.2", Some("7.2.13+deb14-x")),
            ("7.2.9", Some("7.2.9+deb13-x")),
            ("7.2.9+deb13-x", Some("7.2.9+deb13-x")),
            ("7.1", None),
            ("7.2.1", None),
            ("oldest", Some("6.18.9+deb13-x")),
            ("newest", Some("7.10.1-x")),
        ] {
            assert_eq!(picked(wanted).as_deref(), release, "{wanted}");
        }
        assert!("seven".parse::<KernelChoice>().is_err());
        assert!("7.2;reboot".parse::<KernelChoice>().is_err());
    }

    #[test]
    fn releases_are_ordered_by_number() {
        let dir = tempfile::tempdir().unwrap();
        let cache = LabCache::open(Some(dir.path())).unwrap();
        for release in ["7.2.9-x", "7.2.13-x", "6.18.1-x"] {
            fs::create_dir_all(cache.entry(KIND, release)).unwrap();
        }
        let releases: Vec<String> = cached(&cache)
            .unwrap()
            .into_iter()
            .map(|k| k.release)
            .collect();
        assert_eq!(releases, ["6.18.1-x", "7.2.9-x", "7.2.13-x"]);
    }

    fn offers_of(packages: &[(&'static str, &str, u64)]) -> Vec<ArchiveKernel> {
        let part = |&(prefix, release, bytes): &(&'static str, &str, u64)| {
            let name = format!("{prefix}{release}");
            (
                (release.to_owned(), prefix),
                Package {
                    name,
                    version: "1".to_owned(),
                    bytes,
                },
            )
        };
        complete(&packages.iter().map(part).collect())
    }

    #[test]
    fn kernel_needs_all_its_parts() {
        let [image, base, binary, modules] = PARTS;
        let offers = offers_of(&[
            (image, "6.18.1-x", 50 << 20),
            (image, "6.1.1-x", 50 << 20),
            (image, "6.19.1-x", 2000),
            (binary, "6.19.1-x", 13 << 20),
            (image, "7.2.1-x", 2000),
            (base, "7.2.1-x", 1),
            (binary, "7.2.1-x", 1),
            (modules, "7.2.1-x", 1),
        ]);
        let packages: Vec<String> = offers.iter().map(|o| o.packages.join(" ")).collect();
        let split = "linux-base-7.2.1-x=1 linux-binary-7.2.1-x=1 linux-modules-7.2.1-x=1";
        assert_eq!(packages, ["linux-image-6.18.1-x=1", split]);
    }

    #[test]
    fn test_matrix_is_the_oldest_and_the_two_newest_series() {
        let releases = |given: &[&str]| {
            let offers: Vec<_> = given.iter().map(|r| (PARTS[0], *r, 50 << 20)).collect();
            let offers = offers_of(&offers);
            matrix(&offers)
                .iter()
                .map(|o| o.release.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(releases(&[]), [""; 0]);
        assert_eq!(releases(&["7.2.1"]), ["7.2.1"]);
        assert_eq!(releases(&["7.2.1", "7.3.4"]), ["7.2.1", "7.3.4"]);
        let many = ["6.16.3", "6.16.12", "6.18.1", "7.2.6", "7.2.13", "7.3.4"];
        assert_eq!(releases(&many), ["6.16.12", "7.2.13", "7.3.4"]);
    }

    #[test]
    fn both_package_layouts_are_supported_and_checked() {
        let good = "CONFIG_SCHED_CLASS_EXT=y\nCONFIG_DEBUG_INFO_BTF=y\n";
        let arranged = |files: &[(&str, &str)]| {
            let dir = tempfile::tempdir().unwrap();
            let (from, into) = (dir.path().join("from"), dir.path().join("into"));
            fs::create_dir(&into).unwrap();
            for (path, text) in files {
                let path = from.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            arrange("7.2-x", &from, &into, &OPTIONS).map_err(|e| e.to_string())?;
            let kernel = Kernel {
                release: "7.2-x".to_owned(),
                dir: into,
            };
            assert!(kernel.vmlinuz().exists() && kernel.config().exists());
            kernel
                .module("fs/a")
                .map(|_| ())
                .ok_or("no module".to_owned())
        };
        let (old, new) = ("lib/modules/7.2-x", "usr/lib/modules/7.2-x");
        let module = |tree: &str| format!("{tree}/kernel/fs/a.ko.xz");
        let (old_module, new_module) = (module(old), module(new));
        let in_boot = [
            ("boot/vmlinuz-7.2-x", ""),
            ("boot/config-7.2-x", good),
            (&old_module, ""),
        ];
        assert_eq!(arranged(&in_boot), Ok(()));
        let (vmlinuz, config) = (format!("{new}/vmlinuz"), format!("{new}/config"));
        assert_eq!(
            arranged(&[(&vmlinuz, ""), (&config, good), (&new_module, "")]),
            Ok(())
        );
        let without = [
            ("boot/vmlinuz-7.2-x", ""),
            ("boot/config-7.2-x", "CONFIG_DEBUG_INFO_BTF=y"),
        ];
        let message = arranged(&without).unwrap_err();
        assert_eq!(
            message,
            "the kernel '7.2-x' is not available: the kernel was built without \
             CONFIG_SCHED_CLASS_EXT=y, which the lab requires"
        );
        let message = arranged(&in_boot[..1]).unwrap_err();
        assert_eq!(
            message,
            "the kernel '7.2-x' is not available: the packages of the kernel contain no config"
        );
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creates what the experiments need: disks, network namespaces, file trees and inputs of programs.
//!
//! Each part is created on first use, in a temporary directory below `--scratch`. A part is removed
//! when [`BackgroundFixture`] is dropped; if the benchmark is killed, a keeper process removes it.
//! Only one disk is set up at a time.
//!
//! Sizes:
//!
//! - Files to read: 64 MiB on the slow disk, and 2 GiB (512 MiB in quick runs) on the machine's
//!   disk.
//! - The slow disk: 1 GiB.
//! - The image for `e2fsck` on the machine's disk: 16 GiB, or 2 GiB in quick runs.
//!
//! The commands of the set-up have no time limit. An error of a command is returned.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::actors::MARK;
use super::experiments::{DiskSetup, Task, is_installed};
use super::load::{forget, make_file, monotonic_ns};
use super::rig::disk::Disk;
use super::rig::inputs;
use super::rig::keeper::{Keeper, must, script};
use super::rig::network::Network;

/// Script of the keeper: ends the processes that use the files, and removes the temporary directory
/// with up to five attempts in 5 s. During this time, another keeper unmounts the slow disk's file
/// system, which is mounted in the directory.
const UNDO: &str = r#"
for file in /proc/[0-9]*; do
    tr '\0' '\n' <"$file/environ" | grep -q "^$mark" && kill -9 "${file#/proc/}"
done
for i in 1 2 3 4 5; do rm -rf --one-file-system "$dir" && break; sleep 1; done
"#;

/// Sizes of the experiments.
#[derive(Debug, Clone)]
pub struct FixtureSettings {
    /// Time in seconds that a foreground with an adjustable amount of work should take alone.
    pub fg_seconds: f64,
    /// Whether the inputs of programs are small.
    pub quick: bool,
    /// Rate of the network in Mbit/s.
    pub rate_mbit: u32,
    /// Directory tree to search instead of the sources of Linux.
    pub tree: Option<PathBuf>,
    /// The input of `gmx mdrun`.
    pub tpr: Option<PathBuf>,
    /// Whether this disk's scheduler may be switched during the run.
    pub allow_disk_scheduler: bool,
}

/// The parts that exist at present, and the settings for creating further parts.
pub struct BackgroundFixture {
    /// Sizes of the experiments and their options.
    pub size: FixtureSettings,
    /// Time of the monotonic clock in nanoseconds at which all records of work per millisecond
    /// begin.
    pub epoch_ns: u64,
    pub(super) network: Option<Network>,
    pub(super) disk: BTreeMap<DiskSetup, Disk>,
    pub(super) trees: BTreeMap<DiskSetup, PathBuf>,
    pub(super) zlib: Option<PathBuf>,
    // Fields are dropped in their order of declaration. The directory is the last field, because
    // file systems are mounted in the directory.
    scratch: tempfile::TempDir,
    _keeper: Keeper,
}

impl BackgroundFixture {
    /// Returns a fixture without any part. Files will be created below the directory `scratch`.
    pub fn new(size: FixtureSettings, scratch: &Path) -> Result<Self> {
        super::rig::network::sweep();
        let prefix = format!("usher-bench-{}-", std::process::id());
        let scratch = tempfile::Builder::new().prefix(&prefix).tempdir_in(scratch);
        let scratch = scratch.context("making a temporary directory")?;
        let mark = format!("{MARK}={}-", std::process::id());
        let values = [
            ("mark", mark.as_str()),
            ("dir", &scratch.path().display().to_string()),
        ];
        Ok(Self {
            size,
            epoch_ns: monotonic_ns(),
            network: None,
            disk: BTreeMap::new(),
            trees: BTreeMap::new(),
            zlib: None,
            _keeper: Keeper::new(&script(&values, UNDO))?,
            scratch,
        })
    }

    /// Path of the file `name` in the temporary directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Returns the network, which is set up on the first call.
    pub fn network(&mut self) -> Result<&mut Network> {
        if self.network.is_none() {
            let dir = self.path("net");
            std::fs::create_dir_all(&dir)?;
            let network = Network::start(&dir, self.size.rate_mbit, self.epoch_ns);
            self.network = Some(network.context("setting up two network namespaces")?);
        }
        self.network.as_mut().context("no network")
    }

    /// Returns a disk. If another disk was set up before, that disk is removed first.
    pub fn disk(&mut self, place: DiskSetup) -> Result<&Disk> {
        if !self.disk.contains_key(&place) {
            // A changed I/O scheduler must be restored before the next disk is set up.
            self.disk.clear();
            let dir = self.path(place.name());
            std::fs::create_dir_all(&dir)?;
            let scheduler = place.scheduler();
            let disk = match place.is_slow() {
                true => {
                    self.trees.remove(&place);
                    Disk::slow(&dir, scheduler, 1024)
                }
                false => Disk::here(&dir, scheduler, self.size.allow_disk_scheduler),
            };
            self.disk.insert(
                place,
                disk.with_context(|| format!("disk {}", place.name()))?,
            );
        }
        self.disk.get(&place).context("no disk")
    }

    /// Creates the inputs of a task.
    pub fn prepare(&mut self, task: Task, place: Option<DiskSetup>, counts: u32) -> Result<()> {
        if let Some((program, package)) = task.program() {
            ensure!(
                is_installed(program),
                "the program {program} is missing: install the package {package} (scripts/setup \
                 bench)"
            );
        }
        match task {
            Task::Disk => {
                let place = place.context("the disk benchmark was started without a disk")?;
                let mib = self.file_mib(place);
                let dir = self.disk(place)?.dir.clone();
                (0..=counts).try_for_each(|i| make_file(&dir.join(format!("file{i}")), mib))
            }
            Task::Grep => self.plant(place.context("the search was started without a disk")?),
            Task::Make => {
                let dir = self.path("build");
                std::fs::create_dir_all(&dir)?;
                self.zlib = Some(inputs::zlib(&dir)?);
                Ok(())
            }
            Task::Fsck => self.image(
                place.context("the file system check was started without the name of a disk")?,
            ),
            Task::Gromacs if self.size.tpr.is_none() => {
                inputs::water(&self.path("gromacs")).map(|_| ())
            }
            Task::Net => self.network().map(|_| ()),
            Task::Iperf => self.network()?.start_iperf(),
            Task::Scp => {
                let mib =
                    (f64::from(self.size.rate_mbit) * self.size.fg_seconds / 8.4).ceil() as u64;
                make_file(&self.path("sent"), mib.max(1))?;
                make_file(&self.path("sent-long"), 16 * mib.max(1))?;
                self.network()?.start_ssh()
            }
            _ => Ok(()),
        }
    }

    /// Creates an image with an ext4 file system for `e2fsck`, because the machine's own disk
    /// device may not be accessible. On the slow disk, `e2fsck` checks the slow device itself.
    fn image(&mut self, place: DiskSetup) -> Result<()> {
        let disk = self.disk(place)?;
        let image = disk.dir.join("image");
        if place.is_slow() || image.exists() {
            return Ok(());
        }
        let size = if self.size.quick { "2G" } else { "16G" };
        // These features make e2fsck read all inode tables.
        let features = "^uninit_bg,^metadata_csum,^has_journal";
        let extra = "lazy_itable_init=0,nodiscard";
        let image = image.display().to_string();
        must(&[
            "mkfs.ext4",
            "-q",
            "-F",
            "-i",
            "8192",
            "-O",
            features,
            "-E",
            extra,
            &image,
            size,
        ])?;
        must(&["sync", &image])
    }

    fn file_mib(&self, place: DiskSetup) -> u64 {
        match (place.is_slow(), self.size.quick) {
            (true, _) => 64,
            (false, true) => 512,
            (false, false) => 2048,
        }
    }

    fn plant(&mut self, place: DiskSetup) -> Result<()> {
        let dir = self.disk(place)?.dir.clone();
        if !self.trees.contains_key(&place) {
            let small = self.size.quick || place.is_slow();
            let given = self.size.tree.clone();
            let (tree, what) = inputs::tree(&dir, given.as_deref(), small)?;
            eprintln!("background: the directory tree for the search is {what}");
            self.trees.insert(place, tree);
        }
        Ok(())
    }

    /// Prepares a further run of the foreground: drops its input files from the page cache, or
    /// removes its output.
    pub fn refresh(&self, fg: Task, place: Option<DiskSetup>) -> Result<()> {
        match fg {
            Task::Grep => {
                let tree = place
                    .and_then(|place| self.trees.get(&place))
                    .context("no tree")?;
                inputs::forget_tree(tree)
            }
            Task::Make => {
                let zlib = self.zlib.as_ref().context("no sources")?;
                let status = Command::new("make")
                    .args(["-s", "clean"])
                    .current_dir(zlib)
                    .stdout(std::process::Stdio::null())
                    .status()?;
                ensure!(
                    status.success(),
                    "'make clean' in {} ended with {status}",
                    zlib.display()
                );
                Ok(())
            }
            Task::Scp => forget(&std::fs::File::open(self.path("sent"))?),
            _ => Ok(()),
        }
    }
}

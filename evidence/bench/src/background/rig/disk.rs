// SPDX-License-Identifier: MIT OR Apache-2.0
//! The disks of the experiments: the machine's own disk with a given I/O scheduler, and an emulated
//! slow disk with an ext4 file system. A changed I/O scheduler is restored when the [`Disk`] is
//! dropped, or by a keeper when the benchmark is killed.
//!
//! The emulated disk must appear within 10 s. Other commands of the set-up have no time limit. If a
//! step fails, the error is returned, and the keeper removes what already exists.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::keeper::{Keeper, must, script};
use super::slow;
use crate::processes::wait_for;

/// A folder for files, and the block device of the disk that holds the folder.
#[derive(Debug)]
pub struct Disk {
    /// Folder on the disk, for files.
    pub dir: PathBuf,
    /// The block device of the slow disk.
    pub device: PathBuf,
    server: Option<Child>,
    _keeper: Option<Keeper>,
}

/// Returns the kernel's name of the disk that holds a directory: the whole disk (`vda`), not its
/// partition (`vda1`).
pub fn disk_below(dir: &Path) -> Result<String> {
    let device = fs::metadata(dir)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = format!("/sys/dev/block/{major}:{minor}");
    let mut path = fs::canonicalize(&link)
        .with_context(|| format!("the directory {} is not on a block device", dir.display()))?;
    if path.join("partition").exists() {
        path.pop();
    }
    let name = path.file_name().context("the disk has no name")?;
    Ok(name.to_string_lossy().into_owned())
}

fn scheduler_file(disk: &str) -> PathBuf {
    PathBuf::from(format!("/sys/block/{disk}/queue/scheduler"))
}

/// Returns the selected I/O scheduler, which is in brackets in the line of sysfs.
pub fn chosen(line: &str) -> Option<&str> {
    line.split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

/// Returns the selected I/O scheduler of a disk.
pub fn scheduler_of(disk: &str) -> Result<String> {
    let file = scheduler_file(disk);
    let line = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    Ok(chosen(&line)
        .with_context(|| format!("the disk {} has no I/O scheduler", disk))?
        .to_owned())
}

fn set_scheduler(disk: &str, scheduler: &str) -> Result<()> {
    let file = scheduler_file(disk);
    fs::write(&file, scheduler).with_context(|| {
        format!(
            "writing the I/O scheduler {scheduler} to {}",
            file.display()
        )
    })?;
    let now = scheduler_of(disk)?;
    ensure!(
        now == scheduler,
        "the disk {disk} has the I/O scheduler {now}, not {scheduler}"
    );
    Ok(())
}

impl Disk {
    /// Returns the disk that holds `dir`, with the I/O scheduler `scheduler`. If another scheduler
    /// is selected, it is changed only if `allowed`, and restored when the value is dropped or the
    /// benchmark is killed.
    pub fn here(dir: &Path, scheduler: &str, allowed: bool) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let disk = disk_below(dir)?;
        let before = scheduler_of(&disk)?;
        let mut keeper = None;
        if before != scheduler {
            if !allowed {
                bail!(
                    "the disk {disk} has the I/O scheduler {before}; --allow-disk-scheduler sets \
                     {scheduler} during the run"
                );
            }
            let file = scheduler_file(&disk).display().to_string();
            let values = [("file", file.as_str()), ("before", &before)];
            keeper = Some(Keeper::new(&script(
                &values,
                "echo \"$before\" >\"$file\"",
            ))?);
            set_scheduler(&disk, scheduler)?;
        }
        Ok(Self {
            dir: dir.to_owned(),
            device: PathBuf::new(),
            server: None,
            _keeper: keeper,
        })
    }

    /// Sets up a slow disk of `mib` MiB with an ext4 file system, mounted below `dir`.
    pub fn slow(dir: &Path, scheduler: &str, mib: u64) -> Result<Self> {
        let at = |name: &str| dir.join(name).display().to_string();
        let (fuse, files) = (at("fuse"), at("files"));
        fs::create_dir_all(&fuse)?;
        fs::create_dir_all(&files)?;
        fs::File::create(at("backing"))?.set_len(mib << 20)?;
        let undo = "umount \"$files\"; losetup -j \"$fuse/disk\" -O NAME -n | xargs -r losetup -d; umount -l \"$fuse\"";
        let keeper = Keeper::new(&script(&[("files", &files), ("fuse", &fuse)], undo))?;
        // The file system is created on the backing file, which is not slowed down.
        must(&[
            "mkfs.ext4",
            "-q",
            "-F",
            "-E",
            "lazy_itable_init=0,lazy_journal_init=0",
            &at("backing"),
        ])?;
        let server = Command::new(std::env::current_exe()?)
            .args([
                "load",
                "slow-disk",
                "--backing",
                &at("backing"),
                "--mount",
                &fuse,
            ])
            .stdin(Stdio::null())
            .spawn()
            .context("starting the emulated slow disk")?;
        let mut disk = Self {
            dir: PathBuf::from(&files),
            device: PathBuf::new(),
            server: Some(server),
            _keeper: Some(keeper),
        };
        let file = Path::new(&fuse).join(slow::NAME);
        wait_for("the emulated slow disk", Duration::from_secs(10), || {
            file.exists()
        })?;
        disk.attach(&file, scheduler)?;
        Ok(disk)
    }

    fn attach(&mut self, file: &Path, scheduler: &str) -> Result<()> {
        let output = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on"])
            .arg(file)
            .output()?;
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        ensure!(
            output.status.success() && !device.is_empty(),
            "losetup: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.device = PathBuf::from(&device);
        set_scheduler(device.trim_start_matches("/dev/"), scheduler)?;
        must(&[
            "mount",
            "-t",
            "ext4",
            "-o",
            "noatime",
            &device,
            &self.dir.display().to_string(),
        ])
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The keeper unmounts the file system first. The process that emulates the slow disk ends
        // after the unmount.
        self._keeper = None;
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_in_brackets_is_in_use() {
        assert_eq!(
            chosen("none [mq-deadline] kyber bfq\n"),
            Some("mq-deadline")
        );
        assert_eq!(chosen("none\n"), None);
    }
}

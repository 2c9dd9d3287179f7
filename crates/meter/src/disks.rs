// SPDX-License-Identifier: MIT OR Apache-2.0
//! Charges the use of stacked disks to the disks below, and finds the names of disks.
//!
//! Background work on a loop device contends with foreground work on the disk below it.
//! Therefore the use of a stacked disk is also charged to the disks below it, by a rule that
//! depends on the kind of stack:
//!
//! - The device mapper and MD usually pass a request down in the context of the submitting task.
//!   The kernel's trace point then fires in this task once for the upper and once for the lower
//!   disk, and the count of the lower disk already contains the use of the upper disk. If a kernel
//!   thread passes requests down (encryption, RAID writes), the count of the lower disk does not
//!   contain this use. Therefore the lower disk is charged the maximum of the two counts.
//! - A loop device always passes requests through a kernel thread, and the requests of a kernel
//!   thread are charged to no program. Therefore the use of the loop device is added to the count
//!   of the lower disk. The sum overestimates the use of the lower disk, because the page cache may
//!   have answered some requests.
//!
//! The use of a disk on several disks (a stripe) is charged to each of them in full. Charging takes
//! time in proportion to the charged disks times the known disks. Reading a disk costs a few files
//! of `/sys`, and for a loop device the mount table. A disk that cannot be read has no name and no
//! disk below.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use usher_model::{DiskId, DiskUse};

use crate::{files, text};

/// How a stacked disk passes requests to the disk below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StackKind {
    /// Usually in the context of the submitting task.
    Mapping,
    /// By a kernel thread.
    Loop,
}

/// The known disks, the disks below them, and their names.
#[derive(Debug)]
pub(crate) struct Disks {
    proc: PathBuf,
    sys: PathBuf,
    lower: BTreeMap<DiskId, Vec<(DiskId, StackKind)>>,
    names: BTreeMap<DiskId, String>,
}

impl Disks {
    pub fn new(proc: &Path, sys: &Path) -> Self {
        Self {
            proc: proc.to_owned(),
            sys: sys.to_owned(),
            lower: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }

    pub fn names(&self) -> &BTreeMap<DiskId, String> {
        &self.names
    }

    pub fn knows(&self, disk: DiskId) -> bool {
        self.lower.contains_key(&disk)
    }

    /// Reads again the names of these disks and of all disks below them.
    pub fn refresh(&mut self, disks: impl IntoIterator<Item = DiskId>) {
        let mut left: Vec<DiskId> = disks.into_iter().collect();
        let mut counted = BTreeSet::new();
        while let Some(disk) = left.pop() {
            if counted.insert(disk) {
                let lower = self.read(disk);
                left.extend(lower.iter().map(|(disk, _)| *disk));
                self.lower.insert(disk, lower);
            }
        }
    }

    /// Returns all disks that have been read.
    pub fn known(&self) -> Vec<DiskId> {
        self.lower.keys().copied().collect()
    }

    /// Returns the disk at the bottom of a stack; `None` if the disk is not stacked. If a disk is
    /// stacked on several disks, the search follows the first of these disks.
    pub fn bottom(&self, disk: DiskId) -> Option<DiskId> {
        let mut at = disk;
        // A stack without cycles is at most as deep as the number of disks.
        for _ in 0..self.lower.len() {
            match self.lower.get(&at).and_then(|lower| lower.first()) {
                Some((lower, _)) => at = *lower,
                None => break,
            }
        }
        (at != disk).then_some(at)
    }

    /// Returns a disk and all disks that are stacked on it.
    pub fn above(&self, disk: DiskId) -> BTreeSet<DiskId> {
        let mut found = BTreeSet::from([disk]);
        loop {
            let lies_on =
                |lower: &[(DiskId, StackKind)]| lower.iter().any(|(on, _)| found.contains(on));
            let more = self.lower.iter().filter(|(_, lower)| lies_on(lower));
            let more: Vec<DiskId> = more.map(|(upper, _)| *upper).collect();
            let before = found.len();
            found.extend(more);
            if found.len() == before {
                return found;
            }
        }
    }

    /// Returns the use of all disks, in which the use of a stacked disk is also charged to the
    /// disks below it.
    pub fn charge_stacks(&self, counted: &BTreeMap<DiskId, DiskUse>) -> BTreeMap<DiskId, DiskUse> {
        let mut disks: BTreeSet<DiskId> = counted.keys().copied().collect();
        for disk in counted.keys() {
            let mut left = vec![*disk];
            while let Some(at) = left.pop() {
                let lower = self.lower.get(&at).into_iter().flatten();
                left.extend(lower.map(|(on, _)| *on).filter(|on| disks.insert(*on)));
            }
        }
        let mut totals = BTreeMap::new();
        for disk in disks {
            self.total(disk, counted, &mut totals, &mut BTreeSet::new());
        }
        totals
    }

    /// Returns the total use of a disk: its own use, and the use of the disks that are stacked on
    /// it. `open` contains the disks that the recursion has entered. The recursion never enters a
    /// disk twice; it would therefore also end for a cycle of disks, which the kernel does not
    /// make.
    fn total(
        &self,
        disk: DiskId,
        counted: &BTreeMap<DiskId, DiskUse>,
        totals: &mut BTreeMap<DiskId, DiskUse>,
        open: &mut BTreeSet<DiskId>,
    ) -> DiskUse {
        if let Some(total) = totals.get(&disk) {
            return *total;
        }
        let (mut mapped, mut looped) = (DiskUse::default(), DiskUse::default());
        open.insert(disk);
        for (upper, lower) in &self.lower {
            let via = lower.iter().find(|(on, _)| *on == disk);
            let Some((_, via)) = via.filter(|_| !open.contains(upper)) else {
                continue;
            };
            let of_upper = self.total(*upper, counted, totals, open);
            match via {
                StackKind::Mapping => mapped = sum(mapped, of_upper),
                StackKind::Loop => looped = sum(looped, of_upper),
            }
        }
        open.remove(&disk);
        let own = counted.get(&disk).copied().unwrap_or_default();
        let total = sum(greater(own, mapped), looped);
        totals.insert(disk, total);
        total
    }

    /// Reads a disk's name and the disks below it. Returns the disks below.
    fn read(&mut self, disk: DiskId) -> Vec<(DiskId, StackKind)> {
        let Some(dir) = self.dir(disk) else {
            return Vec::new();
        };
        if let Some(name) = dir.file_name() {
            let name = name.to_string_lossy().replace('!', "/");
            self.names.insert(disk, name);
        }
        let mut lower: Vec<(DiskId, StackKind)> = fs::read_dir(dir.join("slaves"))
            .into_iter()
            .flatten()
            .filter_map(|entry| whole(&fs::canonicalize(entry.ok()?.path()).ok()?))
            .map(|disk| (disk, StackKind::Mapping))
            .collect();
        let backing = text::read(&dir.join("loop/backing_file")).ok();
        let backing = backing.and_then(|path| self.disk_of_file(Path::new(path.trim_end())));
        lower.extend(backing.map(|disk| (disk, StackKind::Loop)));
        lower.sort_by_key(|(disk, _)| *disk);
        lower.dedup_by_key(|(disk, _)| *disk);
        lower
    }

    fn dir(&self, disk: DiskId) -> Option<PathBuf> {
        fs::canonicalize(self.sys.join("dev/block").join(disk.to_string())).ok()
    }

    /// Returns the disk that contains a file; `None` if the file system of the file has no device.
    fn disk_of_file(&self, path: &Path) -> Option<DiskId> {
        whole(&self.dir(files::device_of(&self.proc, path)?)?)
    }
}

/// Returns the whole disk of a disk or partition, which is given by its sysfs directory.
fn whole(dir: &Path) -> Option<DiskId> {
    let of_disk = match dir.join("partition").exists() {
        true => dir.parent()?,
        false => dir,
    };
    let (major, minor) = text::parse_optional(&of_disk.join("dev"), text::device_number)?;
    Some(DiskId { major, minor })
}

/// Returns the sum of two uses.
pub(crate) fn sum(a: DiskUse, b: DiskUse) -> DiskUse {
    DiskUse {
        requests: a.requests.saturating_add(b.requests),
        sync_sectors: a.sync_sectors.saturating_add(b.sync_sectors),
        async_sectors: a.async_sectors.saturating_add(b.async_sectors),
        last_ns: a.last_ns.max(b.last_ns),
    }
}

fn greater(a: DiskUse, b: DiskUse) -> DiskUse {
    DiskUse {
        requests: a.requests.max(b.requests),
        sync_sectors: a.sync_sectors.max(b.sync_sectors),
        async_sectors: a.async_sectors.max(b.async_sectors),
        last_ns: a.last_ns.max(b.last_ns),
    }
}

/// Returns the increase from `before` to `now`, with the time of last use in `now`.
pub(crate) fn since(before: DiskUse, now: DiskUse) -> DiskUse {
    DiskUse {
        requests: now.requests.saturating_sub(before.requests),
        sync_sectors: now.sync_sectors.saturating_sub(before.sync_sectors),
        async_sectors: now.async_sectors.saturating_sub(before.async_sectors),
        last_ns: now.last_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VDA: DiskId = id(254, 0);
    const DM: DiskId = id(253, 1);
    const LOOP: DiskId = id(7, 0);

    const fn id(major: u32, minor: u32) -> DiskId {
        DiskId { major, minor }
    }

    fn used(requests: u64, last_ns: u64) -> DiskUse {
        DiskUse {
            requests,
            sync_sectors: requests * 8,
            async_sectors: 0,
            last_ns: Some(last_ns),
        }
    }

    /// Makes a directory like `/sys` with a disk of one partition, a mapping on the partition, and
    /// a loop device on a file.
    fn machine(backing: &str) -> (tempfile::TempDir, Disks) {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for (name, dev) in [
            ("vda", "254:0"),
            ("vda/vda1", "254:1"),
            ("dm-1", "253:1"),
            ("loop0", "7:0"),
        ] {
            let disk = at("devices").join(name);
            fs::create_dir_all(&disk).unwrap();
            fs::write(disk.join("dev"), format!("{dev}\n")).unwrap();
            fs::create_dir_all(at("dev/block")).unwrap();
            std::os::unix::fs::symlink(&disk, at("dev/block").join(dev)).unwrap();
        }
        fs::write(at("devices/vda/vda1/partition"), "1\n").unwrap();
        fs::create_dir_all(at("devices/dm-1/slaves")).unwrap();
        std::os::unix::fs::symlink(at("devices/vda/vda1"), at("devices/dm-1/slaves/vda1")).unwrap();
        fs::create_dir_all(at("devices/loop0/loop")).unwrap();
        fs::write(
            at("devices/loop0/loop/backing_file"),
            format!("{backing}\n"),
        )
        .unwrap();
        let disks = Disks::new(Path::new("/nonexistent"), dir.path());
        (dir, disks)
    }

    #[test]
    fn a_mapping_is_stacked_on_the_whole_disk_of_its_partition() {
        let (_dir, mut disks) = machine("/nonexistent");
        disks.refresh([DM, LOOP]);
        assert_eq!(disks.bottom(DM), Some(VDA));
        assert_eq!(disks.bottom(LOOP), None);
        assert_eq!(disks.above(VDA), BTreeSet::from([VDA, DM]));
        let names: Vec<&str> = disks.names().values().map(String::as_str).collect();
        assert_eq!(names, ["loop0", "dm-1", "vda"]);
        assert!(disks.knows(VDA));
    }

    #[test]
    fn use_of_a_mapping_is_not_counted_twice() {
        let (_dir, mut disks) = machine("/nonexistent");
        disks.refresh([DM]);
        let seen_below = BTreeMap::from([(DM, used(5, 10)), (VDA, used(7, 11))]);
        assert_eq!(disks.charge_stacks(&seen_below), seen_below);
        let unseen = disks.charge_stacks(&BTreeMap::from([(DM, used(5, 10))]));
        assert_eq!(unseen[&VDA], used(5, 10));
    }

    #[test]
    fn use_of_a_loop_device_is_added() {
        let mut disks = Disks::new(Path::new("/nonexistent"), Path::new("/nonexistent"));
        disks.lower.insert(LOOP, vec![(DM, StackKind::Loop)]);
        disks.lower.insert(DM, vec![(VDA, StackKind::Mapping)]);
        let counted = BTreeMap::from([(LOOP, used(3, 9)), (DM, used(2, 5)), (VDA, used(4, 6))]);
        let totals = disks.charge_stacks(&counted);
        assert_eq!(totals[&DM].requests, 5);
        assert_eq!(totals[&VDA].requests, 5, "2 of its 4 were the mapping's");
        assert_eq!(totals[&VDA].last_ns, Some(9));
        assert_eq!(disks.bottom(LOOP), Some(VDA));
    }

    #[test]
    fn a_cycle_terminates() {
        let mut disks = Disks::new(Path::new("/nonexistent"), Path::new("/nonexistent"));
        disks.lower.insert(DM, vec![(VDA, StackKind::Mapping)]);
        disks.lower.insert(VDA, vec![(DM, StackKind::Loop)]);
        assert!(
            disks
                .charge_stacks(&BTreeMap::from([(DM, used(1, 1))]))
                .len()
                == 2
        );
        disks.bottom(DM);
    }
}

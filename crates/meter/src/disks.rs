// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disks that lie on other disks, and what people call them.
//!
//! Background work on a loop device meets foreground work on the disk under
//! it, so use of the one is use of the other. How to charge it depends on who
//! passes requests on:
//!
//! - device mapper and MD do so, as a rule, in the submitter's own context: the
//!   kernel's trace point is passed once for the upper disk and once for the
//!   lower one, by the same task. What the lower disk was seen to do *is* the
//!   use of the upper one. Where a kernel thread passes requests on
//!   (encryption, RAID writes) nothing is seen below. So the lower disk was
//!   used as much as the greater of the two says.
//! - a loop device always goes through a kernel thread, which is charged to
//!   nobody, so its use comes on top of what was seen below. What the page
//!   cache answered is charged too: too much rather than too little.
//!
//! A disk on several others (a stripe) is charged to each of them in full.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use usher_model::{DiskId, DiskUse};

use crate::{files, text};

/// How requests get from a disk to the one under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// In the submitter's context, mostly.
    Mapping,
    /// By a kernel thread.
    Loop,
}

/// Disks seen, what they lie on, and their names.
#[derive(Debug)]
pub(crate) struct Disks {
    proc: PathBuf,
    sys: PathBuf,
    lower: BTreeMap<DiskId, Vec<(DiskId, Via)>>,
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

    /// Looks at disks, and at those under them, again.
    pub fn refresh(&mut self, disks: impl IntoIterator<Item = DiskId>) {
        let mut left: Vec<DiskId> = disks.into_iter().collect();
        let mut seen = BTreeSet::new();
        while let Some(disk) = left.pop() {
            if seen.insert(disk) {
                let lower = self.look(disk);
                left.extend(lower.iter().map(|(disk, _)| *disk));
                self.lower.insert(disk, lower);
            }
        }
    }

    /// Every disk that was looked at.
    pub fn known(&self) -> Vec<DiskId> {
        self.lower.keys().copied().collect()
    }

    /// The disk at the very bottom, where there is one under it; of several
    /// the first.
    pub fn bottom(&self, disk: DiskId) -> Option<DiskId> {
        let mut at = disk;
        // As deep as a stack can be without going in a circle.
        for _ in 0..self.lower.len() {
            match self.lower.get(&at).and_then(|lower| lower.first()) {
                Some((lower, _)) => at = *lower,
                None => break,
            }
        }
        (at != disk).then_some(at)
    }

    /// The disks that lie on this one, itself included.
    pub fn above(&self, disk: DiskId) -> BTreeSet<DiskId> {
        let mut found = BTreeSet::from([disk]);
        loop {
            let lies_on = |lower: &[(DiskId, Via)]| lower.iter().any(|(on, _)| found.contains(on));
            let more = self.lower.iter().filter(|(_, lower)| lies_on(lower));
            let more: Vec<DiskId> = more.map(|(upper, _)| *upper).collect();
            let before = found.len();
            found.extend(more);
            if found.len() == before {
                return found;
            }
        }
    }

    /// Charges use of stacked disks to those under them too.
    pub fn settle(&self, seen: &BTreeMap<DiskId, DiskUse>) -> BTreeMap<DiskId, DiskUse> {
        let mut disks: BTreeSet<DiskId> = seen.keys().copied().collect();
        for disk in seen.keys() {
            let mut left = vec![*disk];
            while let Some(at) = left.pop() {
                let lower = self.lower.get(&at).into_iter().flatten();
                left.extend(lower.map(|(on, _)| *on).filter(|on| disks.insert(*on)));
            }
        }
        let mut settled = BTreeMap::new();
        for disk in disks {
            self.total(disk, seen, &mut settled, &mut BTreeSet::new());
        }
        settled
    }

    /// Use of a disk and of all that lies on it. `open` holds the disks being
    /// summed up, so that a circle, which the kernel does not make, would end.
    fn total(
        &self,
        disk: DiskId,
        seen: &BTreeMap<DiskId, DiskUse>,
        settled: &mut BTreeMap<DiskId, DiskUse>,
        open: &mut BTreeSet<DiskId>,
    ) -> DiskUse {
        if let Some(total) = settled.get(&disk) {
            return *total;
        }
        let (mut mapped, mut looped) = (DiskUse::default(), DiskUse::default());
        open.insert(disk);
        for (upper, lower) in &self.lower {
            let via = lower.iter().find(|(on, _)| *on == disk);
            let Some((_, via)) = via.filter(|_| !open.contains(upper)) else {
                continue;
            };
            let of_upper = self.total(*upper, seen, settled, open);
            match via {
                Via::Mapping => mapped = sum(mapped, of_upper),
                Via::Loop => looped = sum(looped, of_upper),
            }
        }
        open.remove(&disk);
        let own = seen.get(&disk).copied().unwrap_or_default();
        let total = sum(greater(own, mapped), looped);
        settled.insert(disk, total);
        total
    }

    /// Reads a disk's name and what it lies on.
    fn look(&mut self, disk: DiskId) -> Vec<(DiskId, Via)> {
        let Some(dir) = self.dir(disk) else {
            return Vec::new();
        };
        if let Some(name) = dir.file_name() {
            let name = name.to_string_lossy().replace('!', "/");
            self.names.insert(disk, name);
        }
        let mut lower: Vec<(DiskId, Via)> = fs::read_dir(dir.join("slaves"))
            .into_iter()
            .flatten()
            .filter_map(|entry| whole(&fs::canonicalize(entry.ok()?.path()).ok()?))
            .map(|disk| (disk, Via::Mapping))
            .collect();
        let backing = text::read(&dir.join("loop/backing_file")).ok();
        let backing = backing.and_then(|path| self.disk_of_file(Path::new(path.trim_end())));
        lower.extend(backing.map(|disk| (disk, Via::Loop)));
        lower.sort_by_key(|(disk, _)| *disk);
        lower.dedup_by_key(|(disk, _)| *disk);
        lower
    }

    fn dir(&self, disk: DiskId) -> Option<PathBuf> {
        fs::canonicalize(self.sys.join("dev/block").join(disk.to_string())).ok()
    }

    /// The whole disk that a file lies on; `None` where its file system has no
    /// device of its own.
    fn disk_of_file(&self, path: &Path) -> Option<DiskId> {
        whole(&self.dir(files::device_of(&self.proc, path)?)?)
    }
}

/// The whole disk of a disk's or a partition's directory.
fn whole(dir: &Path) -> Option<DiskId> {
    let of_disk = match dir.join("partition").exists() {
        true => dir.parent()?,
        false => dir,
    };
    let (major, minor) = text::maybe(&of_disk.join("dev"), text::device_number)?;
    Some(DiskId { major, minor })
}

/// Both uses together.
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

/// What has come since `before`. The last time of use stays.
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

    /// A `/sys` of a disk with one partition, a mapping on that, and a loop
    /// device on a file.
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
    fn a_mapping_lies_on_the_whole_disk_of_its_partition() {
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
        assert_eq!(disks.settle(&seen_below), seen_below);
        let unseen = disks.settle(&BTreeMap::from([(DM, used(5, 10))]));
        assert_eq!(unseen[&VDA], used(5, 10));
    }

    #[test]
    fn use_of_a_loop_device_comes_on_top() {
        let mut disks = Disks::new(Path::new("/nonexistent"), Path::new("/nonexistent"));
        disks.lower.insert(LOOP, vec![(DM, Via::Loop)]);
        disks.lower.insert(DM, vec![(VDA, Via::Mapping)]);
        let seen = BTreeMap::from([(LOOP, used(3, 9)), (DM, used(2, 5)), (VDA, used(4, 6))]);
        let settled = disks.settle(&seen);
        assert_eq!(settled[&DM].requests, 5);
        assert_eq!(settled[&VDA].requests, 5, "2 of its 4 were the mapping's");
        assert_eq!(settled[&VDA].last_ns, Some(9));
        assert_eq!(disks.bottom(LOOP), Some(VDA));
    }

    #[test]
    fn a_circle_ends() {
        let mut disks = Disks::new(Path::new("/nonexistent"), Path::new("/nonexistent"));
        disks.lower.insert(DM, vec![(VDA, Via::Mapping)]);
        disks.lower.insert(VDA, vec![(DM, Via::Loop)]);
        assert!(disks.settle(&BTreeMap::from([(DM, used(1, 1))])).len() == 2);
        disks.bottom(DM);
    }
}

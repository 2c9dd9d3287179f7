// SPDX-License-Identifier: GPL-2.0-only
//! Random cgroups of the soak check, up to three levels deep, with weights, quotas and `cpu.idle`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::wait_for;
use crate::soak::Random;

const CGROUPS: &str = "/sys/fs/cgroup";
/// Largest number of cgroups at a time.
const MOST: usize = 24;
/// Depth of the deepest cgroup.
const DEPTH: usize = 3;

/// A cgroup of the check. A cgroup without processes of its own may have children.
struct Group {
    path: PathBuf,
    depth: usize,
    /// Whether the cgroup has children or may get children, and therefore no processes.
    is_inner: bool,
}

/// The cgroups of the check.
pub struct Cgroups {
    all: Vec<Group>,
    created: usize,
}

impl Cgroups {
    /// Returns an empty set, after the controller `cpu` was enabled in the root cgroup.
    pub fn new() -> Self {
        let control = Path::new(CGROUPS).join("cgroup.subtree_control");
        fs::write(control, "+cpu").unwrap();
        Self {
            all: vec![],
            created: 0,
        }
    }

    /// Creates a cgroup in the root cgroup or in an inner cgroup. Returns a description.
    pub fn create(&mut self, random: &mut Random) -> String {
        if self.all.len() >= MOST {
            return String::new();
        }
        let inner = self.all.iter().filter(|group| group.is_inner);
        let mut parents: Vec<(PathBuf, usize)> = inner
            .map(|group| (group.path.clone(), group.depth))
            .collect();
        parents.push((PathBuf::from(CGROUPS), 0));
        let (parent, depth) = parents.swap_remove(random.below(parents.len()));
        self.created += 1;
        let path = parent.join(format!("soak-{}", self.created));
        fs::create_dir(&path).unwrap();
        let is_inner = depth + 1 < DEPTH && random.below(2) == 0;
        if is_inner {
            fs::write(path.join("cgroup.subtree_control"), "+cpu").unwrap();
        }
        let about = format!(": {}", path.display());
        self.all.push(Group {
            path,
            depth: depth + 1,
            is_inner,
        });
        about
    }

    /// Changes the weight, the quota or `cpu.idle` of a cgroup. Returns a description.
    pub fn change(&mut self, random: &mut Random) -> String {
        if self.all.is_empty() {
            return String::new();
        }
        let group = &self.all[random.below(self.all.len())];
        let (file, value) = match random.below(6) {
            0 => ("cpu.idle", random.below(2).to_string()),
            1 | 2 => ("cpu.weight", (1 + random.below(10_000)).to_string()),
            3 => ("cpu.max", "max".to_owned()),
            _ => {
                let period_us = 10_000 * (1 + random.below(10));
                let quota_us = 1_000 + random.below(2 * period_us);
                ("cpu.max", format!("{quota_us} {period_us}"))
            }
        };
        // The kernel rejects a weight while `cpu.idle` is 1.
        let written = fs::write(group.path.join(file), &value);
        let result = written.map_or_else(|error| error.to_string(), |()| "set".to_owned());
        format!(": {} {file} {value}: {result}", group.path.display())
    }

    /// Moves a process into a cgroup without children, or into the root cgroup. Returns a
    /// description.
    pub fn take_in(&self, random: &mut Random, pid: u32) -> String {
        let outer = self.all.iter().filter(|group| !group.is_inner);
        let mut paths: Vec<&Path> = outer.map(|group| group.path.as_path()).collect();
        paths.push(Path::new(CGROUPS));
        let path = paths[random.below(paths.len())];
        fs::write(path.join("cgroup.procs"), pid.to_string()).unwrap();
        format!(": {pid}, {}", path.display())
    }

    /// Removes a cgroup without children; its processes move to the root cgroup. Returns a
    /// description.
    pub fn remove(&mut self, random: &mut Random) -> String {
        let has_children = |path: &Path| {
            let mut others = self.all.iter();
            others.any(|other| other.path.parent() == Some(path))
        };
        let leaves: Vec<usize> = (0..self.all.len())
            .filter(|&at| !has_children(&self.all[at].path))
            .collect();
        if leaves.is_empty() {
            return String::new();
        }
        let group = self.all.swap_remove(leaves[random.below(leaves.len())]);
        remove(&group.path);
        format!(": {}", group.path.display())
    }

    /// Removes all cgroups; their processes move to the root cgroup.
    pub fn remove_all(&mut self) {
        self.all.sort_by_key(|group| group.depth);
        while let Some(deepest) = self.all.pop() {
            remove(&deepest.path);
        }
    }
}

/// Removes a cgroup, after its processes have moved to the root cgroup.
fn remove(path: &Path) {
    let root = Path::new(CGROUPS).join("cgroup.procs");
    wait_for("a cgroup to be removed", || {
        let processes = fs::read_to_string(path.join("cgroup.procs")).ok()?;
        for pid in processes.lines() {
            // A process may end in between.
            let _ = fs::write(&root, pid);
        }
        fs::remove_dir(path).ok()
    });
}

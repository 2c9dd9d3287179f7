// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the cgroup hierarchies are mounted, and where in them a process is.
//!
//! Three hierarchies matter: cgroup v2 (the only one, or beside v1 ones on a
//! hybrid machine), which finds and freezes processes, and the v1 hierarchies
//! that have the `cpuset` and the `cpu` controller, where there are any.

use std::fs;
use std::path::{Component, Path, PathBuf};

use procfs::FromBufRead;
use procfs::process::{MountInfo, MountInfos};
use serde::{Deserialize, Serialize};

use crate::config::ActConfig;
use crate::error::{ActError, file_error};
use crate::journal::DirKind;
use crate::procs::Procs;

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Where.
    pub point: PathBuf,
    /// Which cgroup is seen there.
    root: PathBuf,
}

/// The hierarchies that matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Mounts {
    pub v2: Option<Mount>,
    pub cpuset: Option<Mount>,
    pub cpu: Option<Mount>,
}

/// The directories of the cgroups that a process is in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// In cgroup v2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v2: Option<PathBuf>,
    /// In the v1 hierarchy with cpuset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<PathBuf>,
    /// In the v1 hierarchy with cpu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<PathBuf>,
}

impl Places {
    /// In the hierarchy of such a directory.
    pub(crate) fn of(&self, kind: DirKind) -> Option<&PathBuf> {
        match kind {
            DirKind::V2 | DirKind::Scope | DirKind::Unit => self.v2.as_ref(),
            DirKind::CpusetV1 => self.cpuset.as_ref(),
            DirKind::CpuV1 => self.cpu.as_ref(),
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.v2, &self.cpuset, &self.cpu].into_iter().flatten()
    }
}

impl Mounts {
    /// Reads `/proc/self/mountinfo`.
    pub(crate) fn read(config: &ActConfig) -> Result<Self, ActError> {
        let path = config.proc_root.join("self/mountinfo");
        let text = fs::read(&path).map_err(file_error("reading", &path))?;
        let infos = MountInfos::from_buf_read(text.as_slice())
            .map_err(|error| file_error("reading", &path)(std::io::Error::other(error)))?;
        let below = |info: &&MountInfo| info.mount_point.starts_with(&config.cgroup_root);
        let has = |info: &MountInfo, option| info.super_options.contains_key(option);
        let v1 = |info: &&MountInfo| info.fs_type == "cgroup" && !has(info, "noprefix");
        let mount = |info: &MountInfo| Mount {
            point: info.mount_point.clone(),
            root: PathBuf::from(&info.root),
        };
        let infos = || infos.0.iter().filter(below);
        Ok(Self {
            v2: infos().find(|info| info.fs_type == "cgroup2").map(mount),
            cpuset: infos()
                .filter(v1)
                .find(|info| has(info, "cpuset"))
                .map(mount),
            // One that does both at once cannot be left for the one alone.
            cpu: infos()
                .filter(v1)
                .find(|info| has(info, "cpu") && !has(info, "cpuset"))
                .map(mount),
        })
    }

    /// The cgroups of a process; `None` where it is gone. A cgroup that is
    /// not visible here is left out, as is one of which the path is not UTF-8:
    /// the journal could not name it. Its processes are followed by descent.
    pub(crate) fn places(&self, procs: &Procs, pid: i32) -> Option<Places> {
        let text = fs::read(procs.path(pid, "cgroup")).ok()?;
        let mut places = Places::default();
        let lines = text.split(|&byte| byte == b'\n');
        for line in lines.filter_map(|line| std::str::from_utf8(line).ok()) {
            let mut fields = line.splitn(3, ':');
            let (Some(number), Some(controllers), Some(path)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let path = Path::new(path.strip_suffix(" (deleted)").unwrap_or(path));
            if number == "0" {
                places.v2 = self.v2.as_ref().and_then(|mount| mount.dir(path));
                continue;
            }
            let has = |wanted: &str| controllers.split(',').any(|name| name == wanted);
            let v1 = [
                (&self.cpuset, "cpuset", &mut places.cpuset),
                (&self.cpu, "cpu", &mut places.cpu),
            ];
            for (mount, _, place) in v1.into_iter().filter(|(_, name, _)| has(name)) {
                *place = mount.as_ref().and_then(|mount| mount.dir(path));
            }
        }
        Some(places)
    }
}

impl Mount {
    /// The directory of a cgroup, where it is visible under this mount.
    fn dir(&self, cgroup: &Path) -> Option<PathBuf> {
        let below = cgroup.strip_prefix(&self.root).ok()?;
        let visible = below
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::RootDir));
        visible.then(|| {
            if below.as_os_str().is_empty() {
                self.point.clone()
            } else {
                self.point.join(below)
            }
        })
    }
}

/// The nearest directory at or above this one that is there: where processes
/// go when the cgroup that they came from has been removed.
pub(crate) fn nearest(dir: &Path) -> &Path {
    dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_cgroups_to_directories() {
        let whole = Mount {
            point: "/sys/fs/cgroup".into(),
            root: "/".into(),
        };
        assert_eq!(whole.dir(Path::new("/")), Some("/sys/fs/cgroup".into()));
        assert_eq!(
            whole.dir(Path::new("/a/b")),
            Some("/sys/fs/cgroup/a/b".into())
        );
        assert_eq!(whole.dir(Path::new("/../x")), None, "outside the namespace");
        let part = Mount {
            point: "/c".into(),
            root: "/docker/1".into(),
        };
        assert_eq!(part.dir(Path::new("/docker/1/x")), Some("/c/x".into()));
        assert_eq!(part.dir(Path::new("/docker/2")), None);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the mount points of the cgroup hierarchies, and the cgroups of a process in these
//! hierarchies.
//!
//! Usher uses up to three hierarchies. cgroup v2 serves to find and freeze processes; on a hybrid
//! machine it exists beside v1 hierarchies. The other two are the v1 hierarchies with the `cpuset`
//! and with the `cpu` controller, if they are mounted. [`Mounts::read`] parses
//! `/proc/self/mountinfo` once, and fails if this file cannot be read. [`Mounts::places`] parses
//! `/proc/PID/cgroup` at each call. If several mounts fit, the first one in `mountinfo` is used.

use std::path::{Component, Path, PathBuf};

use procfs::FromBufRead;
use procfs::process::{MountInfo, MountInfos};

use crate::config::ActConfig;
use crate::error::{ActError, file_error};
use crate::files;
use crate::journal::CgroupPaths;
use crate::procs::Procs;

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The mount point.
    pub point: PathBuf,
    /// The cgroup that is visible at the mount point.
    root: PathBuf,
}

/// The mounted hierarchies that Usher uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Mounts {
    pub v2: Option<Mount>,
    pub cpuset: Option<Mount>,
    pub cpu: Option<Mount>,
}

impl Mounts {
    /// Reads `/proc/self/mountinfo`.
    pub(crate) fn read(config: &ActConfig) -> Result<Self, ActError> {
        let path = config.proc_root.join("self/mountinfo");
        let text = files::read_bytes(&path).map_err(file_error("reading", &path))?;
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
            // A hierarchy with both controllers is not used for `cpu`: a process cannot enter a
            // cgroup there for one of the controllers alone.
            cpu: infos()
                .filter(v1)
                .find(|info| has(info, "cpu") && !has(info, "cpuset"))
                .map(mount),
        })
    }

    /// Returns the cgroups of a process; `None` if the process is gone. A cgroup that is not
    /// visible under the mount points is left out. A cgroup with a path that is not UTF-8 is also
    /// left out, because the journal could not contain the path. Processes of such cgroups are
    /// found by descent.
    pub(crate) fn places(&self, procs: &Procs, pid: i32) -> Option<CgroupPaths> {
        let text = files::read_bytes(&procs.path(pid, "cgroup")).ok()?;
        let mut places = CgroupPaths::default();
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
    /// Returns the directory of a cgroup if it is visible under this mount.
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

/// Returns the nearest existing directory at or above `dir`. Processes move there if their former
/// cgroup has been removed.
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

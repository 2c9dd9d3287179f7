// SPDX-License-Identifier: MIT OR Apache-2.0
//! The journals that dead instances left to the next start, and whether the next start can undo
//! them. A journal that a running keeper undoes is not among them. Only reads.

use std::path::PathBuf;
use std::time::Instant;

use crate::config::ActConfig;
use crate::error::ActError;
use crate::files;
use crate::instance::{check_owner, owner_in_name, read_checked};
use crate::keeper;
use crate::procs::Procs;

/// The journal of a dead instance.
#[derive(Debug)]
pub struct StaleJournal {
    /// Directory of the instance.
    pub dir: PathBuf,
    /// Why no start of this version of Usher undoes the journal; `None` if the next start does.
    pub refusal: Option<ActError>,
    /// Parts of the journal that cannot be undone, while the rest can.
    pub ignored: Vec<ActError>,
}

/// Returns the journals of dead instances in the order of their names. An instance with a running
/// keeper is left out, because the keeper undoes the changes.
pub fn stale_journals(config: &ActConfig) -> Vec<StaleJournal> {
    let procs = Procs::new(config);
    let mut dirs = files::subdirs(&config.instances_dir());
    let own = procs.own().ok();
    dirs.retain(|dir| {
        let is_dead = owner_in_name(dir).is_some_and(|owner| !procs.lives(owner));
        is_dead && !keeper::undoes(&procs, own, dir, Instant::now())
    });
    dirs.sort();
    let journal = |dir: PathBuf| {
        let read = check_owner(&dir).and_then(|()| read_checked(config, &procs, &dir));
        let (ignored, refusal) = match read {
            Ok((_, ignored)) => (ignored, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        StaleJournal {
            dir,
            refusal,
            ignored,
        }
    };
    dirs.into_iter().map(journal).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Writes a journal of a process that does not exist.
    fn journal(runtime_dir: &Path, start: u64, text: &str) -> PathBuf {
        let dir = runtime_dir.join(format!("instances/{}-{start}", i32::MAX));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(crate::journal::FILE), text).unwrap();
        dir
    }

    #[test]
    fn journals_that_the_next_start_refuses_have_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let config = ActConfig::new(dir.path());
        assert!(stale_journals(&config).is_empty());
        let own = Procs::new(&config).own().unwrap();
        let alive = format!("instances/{}-{}", own.pid, own.start_ticks);
        fs::create_dir_all(dir.path().join(alive)).unwrap();
        fs::create_dir_all(dir.path().join("instances/notes")).unwrap();
        let head = |version: u32| {
            let (boot, namespace) = {
                let procs = Procs::new(&config);
                (procs.boot_id().unwrap(), procs.pid_namespace())
            };
            format!(
                r#"{{"do":"open","version":{version},"boot":"{boot}","owner":{{"pid":{},"start_ticks":1}},"pid_namespace":{namespace}}}"#,
                i32::MAX
            )
        };
        let plain = journal(dir.path(), 1, &format!("{}\n", head(2)));
        let newer = journal(dir.path(), 2, &format!("{}\n", head(99)));
        let damaged = journal(dir.path(), 3, &format!("{}\n%%\n", head(2)));
        let found = stale_journals(&config);
        let dirs: Vec<&PathBuf> = found.iter().map(|one| &one.dir).collect();
        assert_eq!(dirs, [&plain, &newer, &damaged]);
        assert!(found[0].refusal.is_none() && found[0].ignored.is_empty());
        let refusal = found[1].refusal.as_ref().unwrap().to_string();
        assert!(
            refusal.contains("has format 99") && refusal.contains("run 'usher undo' of"),
            "{refusal}"
        );
        assert!(refusal.contains(&newer.display().to_string()), "{refusal}");
        assert!(found[2].refusal.is_none());
        let ignored = found[2].ignored[0].to_string();
        assert!(
            ignored.starts_with("line 2 of the journal") && ignored.contains("restart programs"),
            "{ignored}"
        );
        // What `doctor` states is what the undo does.
        let report = crate::undo_stale(&config).unwrap();
        assert_eq!(report.instances, 2);
        let errors: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
        assert!(
            errors.contains(&refusal) && errors.contains(&ignored),
            "{errors:?}"
        );
        let left = stale_journals(&config);
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].dir, newer);
    }

    #[test]
    fn a_journal_belongs_to_the_next_start_only_without_a_running_keeper() {
        let dir = tempfile::tempdir().unwrap();
        let config = ActConfig::new(dir.path());
        let procs = Procs::new(&config);
        let instance = journal(dir.path(), 1, "");
        let mut keeper = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let id = procs.get(keeper.id() as i32).unwrap().id;
        let text = format!("{} {}\n", id.pid, id.start_ticks);
        fs::write(instance.join("keeper"), text).unwrap();
        let with_keeper = stale_journals(&config);
        let undone = crate::undo_stale(&config).map(|report| report.instances);
        keeper.kill().unwrap();
        keeper.wait().unwrap();
        assert!(with_keeper.is_empty(), "{with_keeper:?}");
        assert_eq!(undone.unwrap(), 0);
        assert_eq!(stale_journals(&config).len(), 1);
        assert_eq!(crate::undo_stale(&config).unwrap().instances, 1);
    }
}

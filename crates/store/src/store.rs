// SPDX-License-Identifier: MIT OR Apache-2.0
//! The profile store in one SQLite file, shared by any number of processes: opening, reading,
//! merging and deleting profiles.
//!
//! **Merging.** A merge combines the stored estimate of each point with the new measurement, weighted
//! by their uncertainty (`rows.rs`, `combine.rs`). Arguments of programs are redacted before they are
//! stored or looked up (`redact.rs`).
//!
//! **Concurrency.** The file uses SQLite's write-ahead log (WAL). Each merge is one immediate
//! transaction, and a writer waits at most 5 s for another writer ([`BUSY_TIMEOUT`]), and then
//! returns [`StoreError::Busy`]. Readers never wait. Opening is repeated for 5 s while other
//! processes open the file. The last attempt may take another 5 s.
//!
//! **Damage.** The whole file is checked when it is opened, in time proportional to its size: well
//! under a millisecond for a usual store. A damaged file is renamed, never deleted. A lock file
//! serialises the renaming (`damaged.rs`). Without the lock, two processes that find the damage at
//! the same time could each rename the new store of the other process.
//!
//! **Cost.** A lookup reads one profile by its key; a list reads all profiles, with one query per
//! profile. A merge reads and writes one row per point. The size of the store has no limit; one
//! profile exists per program, arguments and kind of machine.
//!
//! **Errors.** [`Store::open_or_memory`] replaces a file that cannot be used by a store in memory,
//! and returns a warning. [`Store::open_to_read`] reads a file that cannot be written
//! (`reading.rs`).

use std::cmp::Reverse;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use usher_model::{CurvePoint, ProgramKey, ProgressSource};

use crate::calibration;
use crate::damaged::replace_damaged;
use crate::error::{StoreError, Warning};
use crate::machine::MachineKey;
use crate::profile::{Measurement, Profile, ProfileEntry, VariationRecord};
use crate::reading::open_unwritten;
use crate::redact::redact;
use crate::rows::{
    SELECT, merge_point, merge_profile, point_of, profile_of, saturating, write_point,
};
use crate::schema::{OpenError, STEPS, check_identity, migrate};
use crate::similar::distance;
use crate::space::check_absent;

/// Upper limit of the wait for a write of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between two attempts to open a store that other processes are opening.
const BUSY_PAUSE: Duration = Duration::from_millis(2);

/// The first bytes of every SQLite database.
const MAGIC: &[u8] = b"SQLite format 3\0";

/// A store of profiles, in a file or in memory.
#[derive(Debug)]
pub struct Store {
    pub(crate) connection: Connection,
    pub(crate) path: PathBuf,
}

impl Store {
    /// Opens the store; creates the file and its directory if needed.
    ///
    /// # Errors
    /// The reason for which the file cannot be used. After an error, no profile of the file has
    /// changed.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        // The check of an absent store gives the same reason before and after a failed attempt.
        Self::open_or_create(path).map_err(|error| check_absent(path).err().unwrap_or(error))
    }

    fn open_or_create(path: &Path) -> Result<Self, StoreError> {
        check_kind(path)?;
        if let Some(dir) = path.parent() {
            let mut builder = std::fs::DirBuilder::new();
            let made = builder.recursive(true).mode(0o700).create(dir);
            made.map_err(|error| StoreError::Creation {
                path: path.to_owned(),
                problem: usher_model::without_error_number(&error.to_string()),
            })?;
        }
        create_private(path);
        let until = Instant::now() + BUSY_TIMEOUT;
        loop {
            match Self::open_now(path) {
                Err(StoreError::Busy { .. }) if Instant::now() < until => {
                    std::thread::sleep(BUSY_PAUSE);
                }
                done => return done,
            }
        }
    }

    /// Tries to open the store once. If two processes convert a new file to WAL at the same time,
    /// SQLite fails in one of them at once and ignores the busy timeout, because waiting could
    /// deadlock. The failed process must close the file and try again.
    fn open_now(path: &Path) -> Result<Self, StoreError> {
        let failed = |error| StoreError::from(path, error);
        let connection = Connection::open(path).map_err(failed)?;
        let mut store = Self {
            connection,
            path: path.to_owned(),
        };
        store.prepare()?;
        Ok(store)
    }

    /// Creates a store that is lost when it is dropped.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn in_memory() -> Result<Self, StoreError> {
        let path = PathBuf::from("(in memory)");
        let failed = |error| StoreError::from(&path, error);
        let connection = Connection::open_in_memory().map_err(failed)?;
        let mut store = Self { connection, path };
        store.migrate()?;
        Ok(store)
    }

    /// Opens the store or a substitute. If the file is damaged, renames the file and creates a new
    /// store. If the renaming fails, or the file cannot be used for another reason, returns a store
    /// in memory with the profiles that could be read from the file.
    ///
    /// # Errors
    /// There is not enough memory for a store.
    pub fn open_or_memory(path: &Path) -> Result<(Self, Option<Warning>), StoreError> {
        let (error, kept_at) = match Self::open(path) {
            Ok(store) => return Ok((store, None)),
            Err(error @ StoreError::Corrupt { .. }) => match replace_damaged(path) {
                Ok((store, None)) => return Ok((store, None)),
                Ok((store, kept_at)) => {
                    let in_memory = false;
                    return Ok((
                        store,
                        Some(Warning {
                            error,
                            kept_at,
                            in_memory,
                        }),
                    ));
                }
                Err(again) => (again, None),
            },
            Err(error) => (error, None),
        };
        let mut store = Self::in_memory()?;
        // The file is not opened again if it cannot contain profiles. If it is a FIFO, SQLite would
        // also wait for ever for a writer.
        let is_ours = !matches!(
            error,
            StoreError::Foreign { .. } | StoreError::NotAStore { .. }
        );
        if is_ours && let Ok((readable, _)) = open_unwritten(path) {
            // The result is ignored, because the returned warning reports the file. Profiles that
            // cannot be read are lost.
            let _ = store.copy_from(&readable);
        }
        let in_memory = true;
        Ok((
            store,
            Some(Warning {
                error,
                kept_at,
                in_memory,
            }),
        ))
    }

    /// Returns the key under which the store keeps a program: with redacted arguments.
    pub fn stored_key(key: &ProgramKey) -> ProgramKey {
        stored(key)
    }

    /// Path of the store.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the profile of a program on a kind of machine.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn lookup(
        &self,
        key: &ProgramKey,
        machine: &MachineKey,
    ) -> Result<Option<Profile>, StoreError> {
        let sql = format!("{SELECT} WHERE executable = ?1 AND arguments = ?2 AND machine = ?3");
        let row = self.connection.prepare_cached(&sql).and_then(|mut found| {
            let key = params![key.executable, redact(&key.arguments), machine.as_str()];
            found.query_row(key, profile_of).optional()
        });
        match row.map_err(|e| self.failed(e))? {
            Some((id, listed)) => Ok(Some(self.with_points(id, listed)?.profile)),
            None => Ok(None),
        }
    }

    /// Returns a profile of the same executable on the same kind of machine with other, similar
    /// arguments (`similar.rs`) and with a curve for planning. Among several, returns the profile
    /// whose arguments differ least, then the one with the most points, runs, and the latest run.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn similar(
        &self,
        key: &ProgramKey,
        machine: &MachineKey,
    ) -> Result<Option<ProfileEntry>, StoreError> {
        let key = stored(key);
        let sql = format!("{SELECT} WHERE executable = ?1 AND machine = ?2 AND arguments != ?3");
        let rows = self.connection.prepare_cached(&sql).and_then(|mut all| {
            let values = params![key.executable, machine.as_str(), key.arguments];
            let rows = all.query_map(values, profile_of)?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        });
        let mut best = None;
        for (id, listed) in rows.map_err(|e| self.failed(e))? {
            let Some(distance) = distance(&key.arguments, &listed.key.arguments) else {
                continue;
            };
            let entry = self.with_points(id, listed)?;
            let Some((curve, _)) = entry.profile.curve() else {
                continue;
            };
            let points = curve.points().len();
            let rank = (
                Reverse(distance),
                points,
                entry.profile.runs,
                entry.profile.at_s,
            );
            if best.as_ref().is_none_or(|(known, _)| rank > *known) {
                best = Some((rank, entry));
            }
        }
        Ok(best.map(|(_, entry)| entry))
    }

    /// Returns all profiles, ordered by name.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn list(&self) -> Result<Vec<ProfileEntry>, StoreError> {
        let sql = format!("{SELECT} ORDER BY name, executable, arguments, machine");
        let rows = self.connection.prepare(&sql).and_then(|mut all| {
            let rows = all.query_map([], profile_of)?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        });
        let rows = rows.map_err(|e| self.failed(e))?;
        rows.into_iter()
            .map(|(id, listed)| self.with_points(id, listed))
            .collect()
    }

    /// Merges the measurements of a run, all of them or none.
    ///
    /// # Errors
    /// A point is invalid, or the store cannot be written (see [`StoreError`]). After an error, the
    /// store can still be read.
    pub fn merge(
        &mut self,
        key: &ProgramKey,
        machine: &MachineKey,
        measurement: &Measurement,
    ) -> Result<(), StoreError> {
        for measured in &measurement.points {
            check(&measured.point)?;
        }
        let key = &stored(key);
        let behavior = TransactionBehavior::Immediate;
        let merged = self
            .connection
            .transaction_with_behavior(behavior)
            .and_then(|transaction| {
                let id = merge_profile(&transaction, key, machine, measurement)?;
                for measured in &measurement.points {
                    merge_point(&transaction, id, measured, measurement.at_s)?;
                }
                transaction.commit()
            });
        merged.map_err(|e| self.failed(e))
    }

    /// Returns the record of the ordinary and the varied runs of a program; `None` if the program has
    /// no profile or no record.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn variation(
        &self,
        key: &ProgramKey,
        machine: &MachineKey,
    ) -> Result<Option<VariationRecord>, StoreError> {
        let sql = "SELECT v.runs, v.usual_seconds, v.usual_cpus, v.credit_seconds
                   FROM variation AS v JOIN profile AS p ON v.profile = p.id
                   WHERE p.executable = ?1 AND p.arguments = ?2 AND p.machine = ?3";
        let key = stored(key);
        let values = params![key.executable, key.arguments, machine.as_str()];
        let record = |row: &rusqlite::Row<'_>| {
            Ok(VariationRecord {
                runs: row.get(0)?,
                usual_seconds: row.get(1)?,
                usual_cpus: row.get(2)?,
                credit_seconds: row.get(3)?,
            })
        };
        let found = self.connection.query_row(sql, values, record).optional();
        found.map_err(|e| self.failed(e))
    }

    /// Replaces the record of the ordinary and the varied runs of a program. Without a profile of the
    /// program, nothing is stored.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn set_variation(
        &mut self,
        key: &ProgramKey,
        machine: &MachineKey,
        record: &VariationRecord,
    ) -> Result<(), StoreError> {
        let sql = "INSERT OR REPLACE INTO variation
                   SELECT id, ?4, ?5, ?6, ?7 FROM profile
                   WHERE executable = ?1 AND arguments = ?2 AND machine = ?3";
        let key = stored(key);
        let values = params![
            key.executable,
            key.arguments,
            machine.as_str(),
            record.runs,
            record.usual_seconds,
            record.usual_cpus,
            record.credit_seconds
        ];
        let done = self.connection.execute(sql, values);
        done.map(|_| ()).map_err(|e| self.failed(e))
    }

    /// Deletes the profiles of a program on every machine. Returns their number.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn forget(&mut self, key: &ProgramKey) -> Result<usize, StoreError> {
        let sql = "DELETE FROM profile WHERE executable = ?1 AND arguments = ?2";
        let done = self
            .connection
            .execute(sql, params![key.executable, redact(&key.arguments)]);
        done.map_err(|e| self.failed(e))
    }

    /// Deletes the points of one source of progress from a profile.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn forget_source(
        &mut self,
        key: &ProgramKey,
        machine: &MachineKey,
        source: ProgressSource,
    ) -> Result<(), StoreError> {
        let sql = "DELETE FROM point WHERE source = ?4 AND profile IN (SELECT id FROM profile
                   WHERE executable = ?1 AND arguments = ?2 AND machine = ?3)";
        let key = stored(key);
        let source = source.to_string();
        let values = params![key.executable, key.arguments, machine.as_str(), source];
        let done = self.connection.execute(sql, values);
        done.map(|_| ()).map_err(|e| self.failed(e))
    }

    /// Deletes these profiles, all of them or none.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn remove(&mut self, entries: &[ProfileEntry]) -> Result<(), StoreError> {
        self.change_all(entries, delete)
    }

    /// Adds these profiles, all of them or none. A profile replaces the stored profile of the same
    /// program and kind of machine.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn replace(&mut self, entries: &[ProfileEntry]) -> Result<(), StoreError> {
        self.change_all(entries, |connection, entry| {
            delete(connection, entry)?;
            insert(connection, entry)
        })
    }

    /// Makes a change for each of these profiles, for all of them or none.
    fn change_all(
        &mut self,
        entries: &[ProfileEntry],
        change: impl Fn(&Connection, &ProfileEntry) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let behavior = TransactionBehavior::Immediate;
        let changed = self
            .connection
            .transaction_with_behavior(behavior)
            .and_then(|transaction| {
                for entry in entries {
                    change(&transaction, entry)?;
                }
                transaction.commit()
            });
        changed.map_err(|e| self.failed(e))
    }

    pub(crate) fn failed(&self, error: rusqlite::Error) -> StoreError {
        StoreError::from(&self.path, error)
    }

    /// Prepares the connection. The file of another program, or of a later version of Usher, is
    /// rejected before anything is written.
    fn prepare(&mut self) -> Result<(), StoreError> {
        let limited = self.connection.busy_timeout(BUSY_TIMEOUT);
        limited.map_err(|e| self.failed(e))?;
        let checked = check_identity(&mut self.connection, &STEPS);
        checked.map_err(|error| self.not_opened(error))?;
        restrict_to_owner(&self.path);
        let set = |c: &Connection| {
            c.pragma_update(None, "foreign_keys", true)?;
            // SQLite overwrites deleted and replaced data, which would otherwise remain in free
            // pages of the file.
            c.pragma_update(None, "secure_delete", true)?;
            c.pragma_update(None, "journal_mode", "WAL")?;
            c.pragma_update(None, "synchronous", "NORMAL")
        };
        set(&self.connection).map_err(|e| self.failed(e))?;
        self.check_whole()?;
        self.migrate()?;
        self.redact_old().map_err(|e| self.failed(e))
    }

    /// Redacts arguments that an earlier version of Usher stored unredacted.
    fn redact_old(&mut self) -> rusqlite::Result<()> {
        let old: Vec<(i64, String)> = {
            let mut all = self
                .connection
                .prepare("SELECT id, arguments FROM profile")?;
            let rows = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect::<rusqlite::Result<_>>()?
        };
        let old: Vec<_> = old
            .into_iter()
            .filter(|(_, text)| redact(text) != *text)
            .collect();
        if old.is_empty() {
            return Ok(());
        }
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        for (id, arguments) in old {
            let update = "UPDATE OR REPLACE profile SET arguments = ?2 WHERE id = ?1";
            transaction.execute(update, params![id, redact(&arguments)])?;
        }
        transaction.commit()?;
        // Truncates the write-ahead log, which still contains the old pages.
        self.connection
            .pragma_query(None, "wal_checkpoint(TRUNCATE)", |_| Ok(()))?;
        self.connection.execute_batch("VACUUM")
    }

    /// Checks the whole file for damage before it is used for planning. The check takes well under
    /// a millisecond for a usual store, because profiles are few and small.
    pub(crate) fn check_whole(&self) -> Result<(), StoreError> {
        let sql = "quick_check";
        let result: Result<String, _> = self
            .connection
            .pragma_query_value(None, sql, |row| row.get(0));
        match result.map_err(|e| self.failed(e))?.as_str() {
            "ok" => Ok(()),
            reason => Err(StoreError::Corrupt {
                path: self.path.clone(),
                reason: reason.lines().next().unwrap_or_default().to_owned(),
            }),
        }
    }

    fn migrate(&mut self) -> Result<(), StoreError> {
        migrate(&mut self.connection, &STEPS).map_err(|error| self.not_opened(error))
    }

    fn not_opened(&self, error: OpenError) -> StoreError {
        let path = self.path.clone();
        match error {
            OpenError::Newer(found) => StoreError::Newer {
                path,
                found,
                known: STEPS.len() as u32,
            },
            OpenError::Foreign => StoreError::Foreign { path },
            OpenError::Sqlite(error) => StoreError::from(&path, error),
        }
    }

    fn copy_from(&mut self, other: &Self) -> Result<(), StoreError> {
        for listed in other.list()? {
            insert(&self.connection, &listed).map_err(|e| self.failed(e))?;
        }
        let copied = calibration::copy_all(&other.connection, &self.connection);
        copied.map_err(|e| self.failed(e))
    }

    fn with_points(&self, id: i64, mut listed: ProfileEntry) -> Result<ProfileEntry, StoreError> {
        let sql = "SELECT source, cores, rate, relative_error, busy_cpus, at_s, runs
                   FROM point WHERE profile = ?1 ORDER BY source, cores";
        let points = self.connection.prepare_cached(sql).and_then(|mut all| {
            let rows = all.query_map([id], point_of)?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        });
        // Points of an unknown source, which a later version of Usher has stored, are ignored.
        let points = points.map_err(|e| self.failed(e))?.into_iter().flatten();
        listed.profile.points = points.collect();
        Ok(listed)
    }
}

/// Adds a profile.
fn insert(connection: &Connection, entry: &ProfileEntry) -> rusqlite::Result<()> {
    let (key, profile) = (stored(&entry.key), &entry.profile);
    let sql = "INSERT INTO profile (executable, arguments, machine, name, spinners,
               llc_bytes, bandwidth_gbps, at_s, runs, active_wait, cpus_per_copy, program_cpus)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
    connection.execute(
        sql,
        params![
            key.executable,
            key.arguments,
            entry.machine.as_str(),
            profile.name,
            profile.spinners,
            profile.llc_bytes.map(saturating),
            profile.bandwidth_gbps,
            profile.at_s,
            profile.runs,
            profile.active_wait,
            profile.copies.map(|copies| copies.cpus_per_copy),
            profile.copies.map(|copies| copies.program_cpus)
        ],
    )?;
    let id = connection.last_insert_rowid();
    for stored in &profile.points {
        write_point(connection, id, stored)?;
    }
    Ok(())
}

/// Deletes a profile and, by its foreign key, its points.
fn delete(connection: &Connection, entry: &ProfileEntry) -> rusqlite::Result<()> {
    let sql = "DELETE FROM profile WHERE executable = ?1 AND arguments = ?2 AND machine = ?3";
    let key = stored(&entry.key);
    let machine = entry.machine.as_str();
    connection.execute(sql, params![key.executable, key.arguments, machine])?;
    Ok(())
}

/// Returns the key with redacted arguments.
pub(crate) fn stored(key: &ProgramKey) -> ProgramKey {
    ProgramKey {
        executable: key.executable.clone(),
        arguments: redact(&key.arguments),
    }
}

/// Rejects paths that name no regular file, and files of other programs, by their first bytes. An
/// empty file counts as a new store, and a header of zeros as a damaged store. System errors are
/// ignored here, because opening the file reports them.
fn check_kind(path: &Path) -> Result<(), StoreError> {
    let rejected = || StoreError::NotAStore {
        path: path.to_owned(),
    };
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_file() => return Err(rejected()),
        Ok(_) => {}
        Err(_) => return Ok(()),
    }
    let mut header = Vec::new();
    let read = File::open(path).and_then(|file| file.take(16).read_to_end(&mut header));
    let is_possible = header == MAGIC || header.iter().all(|&byte| byte == 0);
    match read {
        Ok(_) if !is_possible => Err(rejected()),
        _ => Ok(()),
    }
}

/// Creates a missing file with access for its owner only. SQLite gives its companion files the mode
/// of the main file. Errors are ignored here, because opening the file reports them.
fn create_private(path: &Path) {
    let mut new = OpenOptions::new();
    let _ = new.write(true).create_new(true).mode(0o600).open(path);
}

/// Restricts the file and SQLite's companion files to the owner, because another user with read
/// access could lock the file and thereby block every write. Errors are ignored here, because a
/// file with another mode can still be used.
fn restrict_to_owner(path: &Path) {
    let private = Permissions::from_mode(0o600);
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        let meta = std::fs::symlink_metadata(&file);
        if meta.is_ok_and(|meta| meta.is_file() && meta.mode() & 0o077 != 0) {
            let _ = std::fs::set_permissions(&file, private.clone());
        }
    }
}

/// Checks a point by the rules of [`Curve`](usher_model::Curve), so that every stored point can be
/// used for planning.
fn check(point: &CurvePoint) -> Result<(), StoreError> {
    let curve = usher_model::Curve::new(vec![*point]);
    match curve {
        Ok(_) => Ok(()),
        Err(error) => Err(StoreError::Invalid(format!(
            "valid points of the curve: {error}"
        ))),
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables of the profile store, and the migration of older files.
//!
//! 1. The format version of a file is the number of [`STEPS`] that were executed on the file.
//!    SQLite stores this number as `user_version`. A file of the present version needs no write.
//! 2. Otherwise the version is read again in a transaction with the write lock. The wait for the
//!    lock is limited by the busy timeout of the connection (`store.rs`).
//! 3. A file of a later version, or of another program, is an error. `store.rs` also checks this
//!    before it writes to the file for the first time.
//! 4. All missing steps are executed in this transaction, either completely or not at all.
//!
//! A released step never changes; a new format adds a step at the end.

use rusqlite::{Connection, TransactionBehavior};

/// The SQL statements of each migration step. A step migrates a store from one format to the next
/// format.
pub(crate) const STEPS: [&str; 5] = [
    "
    CREATE TABLE profile (
        id INTEGER PRIMARY KEY,
        executable TEXT NOT NULL,
        arguments TEXT NOT NULL,
        machine TEXT NOT NULL,
        name TEXT NOT NULL,
        spinners INTEGER NOT NULL,
        llc_bytes INTEGER,
        bandwidth_gbps REAL,
        at_s INTEGER NOT NULL,
        runs INTEGER NOT NULL,
        UNIQUE (executable, arguments, machine)
    ) STRICT;
    CREATE TABLE point (
        profile INTEGER NOT NULL REFERENCES profile ON DELETE CASCADE,
        source TEXT NOT NULL,
        cores REAL NOT NULL,
        rate REAL NOT NULL,
        relative_error REAL NOT NULL,
        busy_cpus REAL,
        at_s INTEGER NOT NULL,
        runs INTEGER NOT NULL,
        PRIMARY KEY (profile, source, cores)
    ) STRICT, WITHOUT ROWID;
",
    "ALTER TABLE profile ADD COLUMN active_wait INTEGER;",
    "
    CREATE TABLE variation (
        profile INTEGER PRIMARY KEY REFERENCES profile ON DELETE CASCADE,
        runs INTEGER NOT NULL,
        usual_seconds REAL NOT NULL,
        usual_cpus REAL NOT NULL,
        credit_seconds REAL NOT NULL
    ) STRICT;
",
    "
    ALTER TABLE profile ADD COLUMN cpus_per_copy INTEGER;
    ALTER TABLE profile ADD COLUMN program_cpus INTEGER;
",
    "
    CREATE TABLE calibration (
        machine TEXT NOT NULL,
        source TEXT NOT NULL,
        busy_waits INTEGER NOT NULL,
        error REAL NOT NULL,
        at_s INTEGER NOT NULL,
        kernel TEXT NOT NULL,
        PRIMARY KEY (machine, source, busy_waits)
    ) STRICT, WITHOUT ROWID;
",
];

/// SQLite's application ID, which marks the file as a store of Usher: the letters "Ushr". The
/// command `file` prints it.
const APPLICATION_ID: i32 = 0x5573_6872;

/// Reason for which a file cannot be used.
#[derive(Debug)]
pub(crate) enum OpenError {
    Newer(u32),
    Foreign,
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Migrates a file to the format of `steps`, completely or not at all.
pub(crate) fn migrate(connection: &mut Connection, steps: &[&str]) -> Result<(), OpenError> {
    if version(connection)? == steps.len() as u32 {
        return check_owner(connection);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // The version is checked again under the write lock, because another process may have migrated
    // the file meanwhile.
    let found = accepted_version(&transaction, steps)?;
    for step in &steps[found as usize..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", steps.len() as u32)?;
    Ok(transaction.commit()?)
}

/// Checks that a file can be migrated to the format of `steps`. Writes nothing.
pub(crate) fn check_identity(connection: &mut Connection, steps: &[&str]) -> Result<(), OpenError> {
    // The values are read in one transaction, because another process may migrate the file.
    let transaction = connection.transaction()?;
    accepted_version(&transaction, steps).map(|_| ())
}

/// Returns whether a file is a store of the present format.
pub(crate) fn is_current(connection: &Connection) -> bool {
    let is_version = version(connection).is_ok_and(|found| found == STEPS.len() as u32);
    is_version && check_owner(connection).is_ok()
}

/// Returns the format version of a file that can be migrated to the format of `steps`.
fn accepted_version(connection: &Connection, steps: &[&str]) -> Result<u32, OpenError> {
    let found = version(connection)?;
    if found > steps.len() as u32 {
        return Err(OpenError::Newer(found));
    }
    if found > 0 {
        check_owner(connection)?;
    } else if tables(connection)? > 0 {
        return Err(OpenError::Foreign);
    }
    Ok(found)
}

fn version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn check_owner(connection: &Connection) -> Result<(), OpenError> {
    let id: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    match id {
        APPLICATION_ID => Ok(()),
        _ => Err(OpenError::Foreign),
    }
}

fn tables(connection: &Connection) -> rusqlite::Result<u32> {
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiles(connection: &Connection) -> u32 {
        let count = "SELECT count(*) FROM profile";
        connection.query_row(count, [], |row| row.get(0)).unwrap()
    }

    fn with_a_profile() -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, &STEPS[..1]).unwrap();
        let insert = "INSERT INTO profile VALUES (1, 'e', 'a', 'm', 'n', 0, NULL, NULL, 5, 1)";
        connection.execute(insert, []).unwrap();
        connection
    }

    #[test]
    fn a_migration_keeps_the_profiles() {
        let mut connection = with_a_profile();
        migrate(&mut connection, &STEPS).unwrap();
        migrate(&mut connection, &STEPS).unwrap();
        let now = STEPS.len() as u32;
        assert_eq!(
            (profiles(&connection), version(&connection).unwrap()),
            (1, now)
        );
        let newer = migrate(&mut connection, &STEPS[..1]).unwrap_err();
        assert!(matches!(newer, OpenError::Newer(v) if v == now));
    }

    #[test]
    fn a_step_that_fails_changes_nothing() {
        let mut connection = with_a_profile();
        let broken = [
            STEPS[0],
            "ALTER TABLE profile ADD COLUMN more INTEGER; DROP TABLE point;",
            "no such statement",
        ];
        migrate(&mut connection, &broken).unwrap_err();
        assert_eq!(version(&connection).unwrap(), 1);
        let points = connection.query_row("SELECT count(*) FROM point", [], |row| row.get(0));
        assert_eq!(points, Ok(0), "the table is still there");
    }

    #[test]
    fn rejects_a_foreign_database_unchanged() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute("CREATE TABLE theirs (x)", []).unwrap();
        let error = migrate(&mut connection, &STEPS).unwrap_err();
        assert!(matches!(error, OpenError::Foreign));
        assert_eq!(tables(&connection).unwrap(), 1);
    }
}

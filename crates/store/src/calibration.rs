// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calibration of the sources of progress, one for each kind of machine: the table
//! `calibration`, with a row for each source.
//!
//! A new calibration replaces the earlier one completely. A calibration is valid for the kernel
//! release on which it was measured, because the kernel counts CPU time, bytes and instructions.
//! Rows of an unknown source, which a later version of Usher has stored, are ignored.

use rusqlite::{Connection, TransactionBehavior, params};
use usher_model::SourceErrors;

use crate::error::StoreError;
use crate::machine::MachineKey;
use crate::rows::source_named;
use crate::store::Store;

/// The errors of the sources of progress on one kind of machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// Time of the measurement in seconds since 1970.
    pub at_s: i64,
    /// Release of the kernel, as printed by `uname -r`.
    pub kernel: String,
    /// The errors.
    pub errors: SourceErrors,
}

impl Calibration {
    /// Returns the errors that are valid on this kernel release; empty on another release.
    pub fn errors_on(self, kernel: &str) -> SourceErrors {
        match self.kernel == kernel {
            true => self.errors,
            false => SourceErrors::default(),
        }
    }
}

impl Store {
    /// Returns the calibration of a kind of machine; `None` if there is none.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn calibration(&self, machine: &MachineKey) -> Result<Option<Calibration>, StoreError> {
        let read = read(&self.connection, machine.as_str());
        read.map_err(|error| self.failed(error))
    }

    /// Replaces the calibration of a kind of machine.
    ///
    /// # Errors
    /// An error is negative or not finite, or the store cannot be written.
    pub fn set_calibration(
        &mut self,
        machine: &MachineKey,
        calibration: &Calibration,
    ) -> Result<(), StoreError> {
        let is_invalid = |error: f64| !error.is_finite() || error < 0.0;
        if let Some((source, _, error)) = (calibration.errors.iter()).find(|e| is_invalid(e.2)) {
            let source_name = source.to_string();
            return Err(StoreError::Calibration { source_name, error });
        }
        let behavior = TransactionBehavior::Immediate;
        let done = self
            .connection
            .transaction_with_behavior(behavior)
            .and_then(|transaction| {
                write(&transaction, machine.as_str(), calibration)?;
                transaction.commit()
            });
        done.map_err(|error| self.failed(error))
    }
}

/// Copies the calibrations of all kinds of machines.
pub(crate) fn copy_all(from: &Connection, to: &Connection) -> rusqlite::Result<()> {
    let mut machines = from.prepare("SELECT DISTINCT machine FROM calibration")?;
    let machines = machines.query_map([], |row| row.get::<_, String>(0))?;
    for machine in machines {
        let machine = machine?;
        if let Some(calibration) = read(from, &machine)? {
            write(to, &machine, &calibration)?;
        }
    }
    Ok(())
}

fn read(connection: &Connection, machine: &str) -> rusqlite::Result<Option<Calibration>> {
    let sql = "SELECT source, busy_waits, error, at_s, kernel FROM calibration WHERE machine = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([machine])?;
    let mut found: Option<Calibration> = None;
    while let Some(row) = rows.next()? {
        let (at_s, kernel) = (row.get(3)?, row.get(4)?);
        let calibration = found.get_or_insert_with(|| Calibration {
            at_s,
            kernel,
            errors: SourceErrors::default(),
        });
        let name: String = row.get(0)?;
        if let Some(source) = source_named(&name) {
            (calibration.errors).set(source, row.get(1)?, row.get(2)?);
        }
    }
    Ok(found)
}

fn write(
    connection: &Connection,
    machine: &str,
    calibration: &Calibration,
) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM calibration WHERE machine = ?1", [machine])?;
    let sql = "INSERT INTO calibration (machine, source, busy_waits, error, at_s, kernel)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let Calibration { at_s, kernel, .. } = calibration;
    for (source, busy_waits, error) in calibration.errors.iter() {
        let values = params![machine, source.to_string(), busy_waits, error, at_s, kernel];
        connection.execute(sql, values)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use usher_model::ProgressSource::{Bytes, CpuTime, Heartbeat};

    use super::*;

    fn machine(name: &str) -> MachineKey {
        MachineKey::from_stored(name.to_owned())
    }

    fn calibration(
        kernel: &str,
        errors: &[(usher_model::ProgressSource, bool, f64)],
    ) -> Calibration {
        let mut all = SourceErrors::default();
        for &(source, busy_waits, error) in errors {
            all.set(source, busy_waits, error);
        }
        Calibration {
            at_s: 7,
            kernel: kernel.to_owned(),
            errors: all,
        }
    }

    #[test]
    fn a_calibration_survives_and_is_replaced_completely() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profiles.db");
        let mut store = Store::open(&path).unwrap();
        assert_eq!(store.calibration(&machine("a")).unwrap(), None);
        let first = calibration("6.1", &[(Bytes, false, 0.02), (CpuTime, true, 3.5)]);
        let other = calibration("6.2", &[(Bytes, true, 0.0)]);
        store.set_calibration(&machine("a"), &first).unwrap();
        store.set_calibration(&machine("b"), &other).unwrap();
        drop(store);
        let mut store = Store::open(&path).unwrap();
        assert_eq!(store.calibration(&machine("a")).unwrap(), Some(first));
        let next = calibration("6.3", &[(Heartbeat, false, 0.1)]);
        store.set_calibration(&machine("a"), &next).unwrap();
        assert_eq!(store.calibration(&machine("a")).unwrap(), Some(next));
        assert_eq!(store.calibration(&machine("b")).unwrap(), Some(other));
    }

    #[test]
    fn a_calibration_is_copied_into_memory() {
        let mut file = Store::in_memory().unwrap();
        let stored = calibration("6.1", &[(Bytes, false, 0.02)]);
        file.set_calibration(&machine("a"), &stored).unwrap();
        let copy = Store::in_memory().unwrap();
        copy_all(&file.connection, &copy.connection).unwrap();
        assert_eq!(copy.calibration(&machine("a")).unwrap(), Some(stored));
    }

    #[test]
    fn an_invalid_error_changes_nothing() {
        let mut store = Store::in_memory().unwrap();
        let valid = calibration("6.1", &[(Bytes, false, 0.02)]);
        store.set_calibration(&machine("a"), &valid).unwrap();
        for error in [-0.1, f64::NAN, f64::INFINITY] {
            let invalid = calibration("6.2", &[(Bytes, false, error)]);
            let refused = store.set_calibration(&machine("a"), &invalid).unwrap_err();
            assert!(refused.to_string().contains("'bytes'"), "{refused}");
        }
        assert_eq!(store.calibration(&machine("a")).unwrap(), Some(valid));
    }

    #[test]
    fn an_unknown_source_is_ignored() {
        let mut store = Store::in_memory().unwrap();
        let known = calibration("6.1", &[(Bytes, false, 0.02)]);
        store.set_calibration(&machine("a"), &known).unwrap();
        let sql = "INSERT INTO calibration VALUES ('a', 'frames', 0, 0.5, 7, '6.1')";
        store.connection.execute(sql, []).unwrap();
        assert_eq!(store.calibration(&machine("a")).unwrap(), Some(known));
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The copies that launchers inside a program started in an earlier run, in two columns of the
//! program's profile. A program without a profile gets a profile without points, which has 0 runs.
//!
//! `rows.rs` reads the columns. Each function executes one or two SQL statements on the profile of
//! one program. `exchange.rs` neither exports nor imports the columns.

use rusqlite::{TransactionBehavior, params};
use usher_model::{ProgramKey, StoredCopies};

use crate::error::StoreError;
use crate::machine::MachineKey;
use crate::store::{Store, stored};

impl Store {
    /// Replaces the known copies of a program. A program without a profile gets a profile without
    /// points, with this name and time in seconds since 1970.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn set_copies(
        &mut self,
        key: &ProgramKey,
        machine: &MachineKey,
        name: &str,
        at_s: i64,
        copies: StoredCopies,
    ) -> Result<(), StoreError> {
        let sql = "INSERT INTO profile (executable, arguments, machine, name, spinners, at_s, runs,
                       cpus_per_copy, program_cpus)
                   VALUES (?1, ?2, ?3, ?4, 0, ?5, 0, ?6, ?7)
                   ON CONFLICT (executable, arguments, machine) DO UPDATE SET
                       cpus_per_copy = excluded.cpus_per_copy,
                       program_cpus = excluded.program_cpus";
        let key = stored(key);
        let values = params![
            key.executable,
            key.arguments,
            machine.as_str(),
            name,
            at_s,
            copies.cpus_per_copy,
            copies.program_cpus
        ];
        let done = self.connection.execute(sql, values);
        done.map(|_| ()).map_err(|e| self.failed(e))
    }

    /// Deletes the known copies of a program, and its profile if the profile contains nothing else.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn forget_copies(
        &mut self,
        key: &ProgramKey,
        machine: &MachineKey,
    ) -> Result<(), StoreError> {
        const CLEAR: &str = "UPDATE profile SET cpus_per_copy = NULL, program_cpus = NULL
                             WHERE executable = ?1 AND arguments = ?2 AND machine = ?3";
        const DELETE: &str = "DELETE FROM profile
                              WHERE executable = ?1 AND arguments = ?2 AND machine = ?3
                                  AND runs = 0";
        let key = stored(key);
        let values = params![key.executable, key.arguments, machine.as_str()];
        let behavior = TransactionBehavior::Immediate;
        let done = self
            .connection
            .transaction_with_behavior(behavior)
            .and_then(|transaction| {
                transaction.execute(CLEAR, values)?;
                transaction.execute(DELETE, values)?;
                transaction.commit()
            });
        done.map_err(|e| self.failed(e))
    }
}

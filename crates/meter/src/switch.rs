// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hook that the meter does without: CPU time accounted at every context
//! switch. For benchmarks that compare.

use crate::error::MeterError;
use crate::layout::Control;
use crate::programs::{Loaded, ProgramCost};

/// What runs at each context switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchKind {
    /// Nothing: what a hook costs by itself.
    Empty,
    /// Accounting by party.
    Counting,
}

/// A program at every context switch, until it is dropped.
#[derive(Debug)]
pub struct SwitchHook {
    loaded: Loaded,
}

impl SwitchHook {
    /// Loads and attaches it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach(kind: SwitchKind) -> Result<Self, MeterError> {
        let mut loaded = Loaded::switch()?;
        crate::programs::give_orders(&loaded.map("control")?, &Control::default())?;
        let wanted = match kind {
            SwitchKind::Empty => "switch_empty",
            SwitchKind::Counting => "switch_counted",
        };
        loaded.attach(|name| name == wanted)?;
        Ok(Self { loaded })
    }

    /// What it has cost; see [`keep_account`](crate::keep_account).
    pub fn costs(&self) -> Vec<ProgramCost> {
        self.loaded.costs()
    }
}

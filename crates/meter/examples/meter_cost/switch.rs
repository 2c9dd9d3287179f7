// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hook that the meter does without: CPU time accounted at every context
//! switch.

use std::os::fd::AsFd;

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{Link, Object, ObjectBuilder, ProgramImpl};
use usher_meter::ProgramCost;

use crate::Any;

/// The compiled programs, placed as a reader of ELF files wants them.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static SWITCH: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/switch.bpf.o")));

/// What runs at each context switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchKind {
    /// Nothing: what a hook costs by itself.
    Empty,
    /// Accounting by party.
    Counting,
}

impl SwitchKind {
    fn program(self) -> &'static str {
        match self {
            Self::Empty => "switch_empty",
            Self::Counting => "switch_counted",
        }
    }
}

/// A program at every context switch, until it is dropped.
#[derive(Debug)]
pub struct SwitchHook {
    /// Detached before the object goes.
    _link: Link,
    id: u32,
    _object: Object,
}

impl SwitchHook {
    /// Loads and attaches it. Nobody gives orders: all is foreground's.
    pub fn attach(kind: SwitchKind) -> Result<Self, Any> {
        let object = ObjectBuilder::default().open_memory(&SWITCH.0)?.load()?;
        let program = object
            .progs_mut()
            .find(|program| program.name() == kind.program())
            .ok_or("the object lacks the program")?;
        let link = program.attach()?;
        Ok(Self {
            id: ProgramImpl::<()>::id_from_fd(program.as_fd())?,
            _link: link,
            _object: object,
        })
    }

    /// What it has cost; see [`keep_account`](usher_meter::keep_account).
    pub fn cost(&self) -> Option<ProgramCost> {
        let info = ProgInfoIter::default().find(|info| info.id == self.id)?;
        Some(ProgramCost {
            name: info.name.to_string_lossy().into_owned(),
            runs: info.run_cnt,
            run_ns: info.run_time_ns,
        })
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads the hook with which the meter is compared: CPU time accounting at every context switch.
//! The meter itself needs no such hook.

use std::os::fd::AsFd;

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{Link, Object, ObjectBuilder, ProgramImpl};
use usher_meter::ProgramCost;

use crate::BoxedError;

/// The compiled programs, aligned as ELF readers require.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static SWITCH: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/switch.bpf.o")));

/// The program that runs at each context switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchKind {
    /// An empty program, which shows the cost of the hook itself.
    Empty,
    /// A program that accounts the CPU time by owner.
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

/// A program that runs at every context switch until the value is dropped.
#[derive(Debug)]
pub struct SwitchHook {
    /// The attachment of the program. The attachment must be dropped (detached) before the object.
    _link: Link,
    id: u32,
    _object: Object,
}

impl SwitchHook {
    /// Loads and attaches the program. The map of background programs is empty; all use therefore
    /// counts as foreground.
    pub fn attach(kind: SwitchKind) -> Result<Self, BoxedError> {
        let object = ObjectBuilder::default().open_memory(&SWITCH.0)?.load()?;
        let program = object
            .progs_mut()
            .find(|program| program.name() == kind.program())
            .ok_or("the BPF object lacks the program")?;
        let link = program.attach()?;
        Ok(Self {
            id: ProgramImpl::<()>::id_from_fd(program.as_fd())?,
            _link: link,
            _object: object,
        })
    }

    /// Returns the cost of the program as measured by the kernel; see
    /// [`enable_bpf_stats`](usher_meter::enable_bpf_stats).
    pub fn cost(&self) -> Option<ProgramCost> {
        let info = ProgInfoIter::default().find(|info| info.id == self.id)?;
        Some(ProgramCost {
            name: info.name.to_string_lossy().into_owned(),
            runs: info.run_cnt,
            run_ns: info.run_time_ns,
        })
    }
}

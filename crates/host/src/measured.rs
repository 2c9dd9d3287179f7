// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that is being measured: launched in its home, repeated, and
//! taken away with all that it left behind.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use usher_model::ProgramId;

use crate::engine::{Adopt, Adopted, EngineHandle};
use crate::error::MeasureError;
use crate::launch::{LaunchSpec, Repeater, Repetition, Stream, repeat};

/// The end of what a program said on its standard error that is told.
const STDERR_BYTES: usize = 400;
/// How long a sleep lasts before it is looked whether the user has had enough.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// A program that is being measured. Dropped, all of its processes are killed.
#[derive(Debug)]
pub(crate) struct Cast {
    repeater: Option<Repeater>,
    adopted: Option<Adopted>,
    stderr: PathBuf,
}

impl Cast {
    /// Launches it, in an engine's care or in nobody's; it does not run yet.
    pub fn launch(
        engine: Option<&EngineHandle>,
        mut spec: LaunchSpec,
        adopt: Adopt,
        stderr: &Path,
    ) -> Result<Self, MeasureError> {
        spec.stderr = Stream::File(stderr.to_owned());
        let (repeater, adopted) = match engine {
            Some(engine) => {
                let (repeater, adopted) = engine.launch_repeating(&spec, adopt)?;
                (repeater, Some(adopted))
            }
            None => (repeat(&spec)?, None),
        };
        Ok(Self {
            repeater: Some(repeater),
            adopted,
            stderr: stderr.to_owned(),
        })
    }

    /// What the engine said when it took it in.
    pub fn adopted(&self) -> Option<&Adopted> {
        self.adopted.as_ref()
    }

    /// Its number in the engine.
    pub fn id(&self) -> Option<ProgramId> {
        self.adopted.as_ref().map(|adopted| adopted.id)
    }

    /// Starts a repetition.
    pub fn start(&mut self) -> Result<(), MeasureError> {
        let repeater = self.repeater.as_mut();
        Ok(repeater.map_or(Ok(()), Repeater::start)?)
    }

    /// The repetition that was started, once it has ended.
    pub fn finish(&mut self) -> Result<Repetition, MeasureError> {
        let repeater = self.repeater.as_mut().ok_or(MeasureError::Cancelled)?;
        Ok(repeater.finish()?)
    }

    /// Readable when a repetition has ended.
    pub fn report_fd(&self) -> Option<BorrowedFd<'_>> {
        self.repeater.as_ref().map(Repeater::report_fd)
    }

    /// Waits for a repetition's end, looking at `cancel` and calling `tick`
    /// meanwhile. `None`: no end within `patience`.
    pub fn wait(
        &mut self,
        patience: Duration,
        cancel: &AtomicBool,
        mut tick: impl FnMut(),
    ) -> Result<Option<Repetition>, MeasureError> {
        let began = Instant::now();
        while wait_readable(&[self.report_fd()], cancel)?.is_empty() {
            if began.elapsed() > patience {
                return Ok(None);
            }
            tick();
        }
        self.finish().map(Some)
    }

    /// The end of what it said on its standard error.
    pub fn last_words(&self) -> String {
        tail(&self.stderr)
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        drop(self.repeater.take());
        if let Some(adopted) = &self.adopted {
            // Processes that left its session.
            usher_act::kill_all(&adopted.home);
        }
    }
}

/// Which of these became readable within a tick, by index.
pub(crate) fn wait_readable(
    fds: &[Option<BorrowedFd<'_>>],
    cancel: &AtomicBool,
) -> Result<Vec<usize>, MeasureError> {
    if cancel.load(Ordering::Relaxed) {
        return Err(MeasureError::Cancelled);
    }
    let there = fds.iter().enumerate();
    let there = there.filter_map(|(at, fd)| Some((at, fd.as_ref()?.as_fd())));
    let (places, mut polled): (Vec<_>, Vec<_>) = there
        .map(|(at, fd)| (at, PollFd::from_borrowed_fd(fd, PollFlags::IN)))
        .unzip();
    let tick = Timespec {
        tv_sec: 0,
        tv_nsec: TICK.as_nanos() as i64,
    };
    // An interrupted sleep is a short one.
    let _ = poll(&mut polled, Some(&tick));
    if cancel.load(Ordering::Relaxed) {
        return Err(MeasureError::Cancelled);
    }
    let ready = polled.iter().zip(places);
    let ready = ready.filter(|(fd, _)| !fd.revents().is_empty());
    Ok(ready.map(|(_, at)| at).collect())
}

pub(crate) fn tail(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let end = &bytes[bytes.len().saturating_sub(STDERR_BYTES)..];
    String::from_utf8_lossy(end).trim().to_owned()
}

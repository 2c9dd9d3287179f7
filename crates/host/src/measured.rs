// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a program under measurement. The program is launched in its home, managed by an engine if
//! there is an engine, started repeatedly by a repeater, and finally killed together with all
//! processes that it has left.
//!
//! [`MeasuredProcess::wait`] ends after the time limit of its caller, and checks every 200 ms
//! whether the user has cancelled. A wait can therefore exceed its limit by 200 ms. The end of a
//! process takes at most 1 s. An error message contains the last 400 bytes of the program's
//! standard error.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use usher_model::ProgramId;

use crate::engine::{AdoptOptions, AdoptedProgram, EngineError, EngineHandle};
use crate::launch::{
    Exit, LaunchError, LaunchSpec, OWN_FAILURE, Repeater, Repetition, Stream, repeat,
};
use crate::quiet::BusyMachine;
use crate::text;

/// Maximum length of the end of a program's standard error that is reported, in bytes.
const STDERR_BYTES: usize = 400;
/// Interval of the checks for cancellation.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// The reason for which a program did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The control loop failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The program could not be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The program failed.
    #[error(
        "program '{name}' ended with {exit} {condition}{}",
        stderr_text(stderr)
    )]
    Failed {
        /// Name of the program.
        name: String,
        /// Exit of the program.
        exit: Exit,
        /// The condition of the run.
        condition: RunCondition,
        /// The last part of the program's standard error.
        stderr: String,
    },
    /// The program exceeded the time limit of a repetition.
    #[error(
        "a repetition of the program '{name}' {condition} did not end within {}{}",
        text::seconds(*seconds),
        match condition {
            RunCondition::Alone | RunCondition::Copies(_) => "",
            RunCondition::Policy(_) => "; if the program needs longer, raise \
                                        protocol.timeout_seconds in the mix file",
        }
    )]
    TimedOut {
        /// Name of the program.
        name: String,
        /// The condition of the run.
        condition: RunCondition,
        /// The time limit.
        seconds: f64,
    },
    /// The program ends too soon for a measurement.
    #[error(
        "program '{name}' ended after {:.0} ms, which is too short to measure: give it more work, \
         so that it runs for at least a second",
        1e3 * seconds
    )]
    TooShort {
        /// Name of the program.
        name: String,
        /// Duration of the run.
        seconds: f64,
    },
    /// No run of the program succeeded after the first.
    #[error(
        "program '{name}' succeeded once, and then failed{}: a command that is measured must be \
         repeatable",
        reason.as_ref().map_or_else(String::new, |reason| format!(" with {reason}"))
    )]
    Unsteady {
        /// Name of the program.
        name: String,
        /// Exit and standard error of a failed run.
        reason: Option<String>,
    },
    /// A step of the runner failed.
    #[error("{doing}: {source}")]
    System {
        /// The step.
        doing: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// Other programs disturb the measurement.
    #[error(transparent)]
    Busy(#[from] BusyMachine),
    /// The user has cancelled.
    #[error("interrupted")]
    Cancelled,
}

impl RunError {
    /// Returns the exit status of Usher for this error.
    pub fn code(&self) -> u8 {
        match self {
            Self::Engine(error) => error.code(),
            Self::Launch(error) => error.code(),
            Self::Cancelled => 130,
            _ => OWN_FAILURE,
        }
    }
}

/// The condition of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunCondition {
    /// The program ran alone.
    Alone,
    /// This number of copies ran at the same time.
    Copies(u32),
    /// The program ran in a mix, under this policy.
    Policy(String),
}

impl std::fmt::Display for RunCondition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Alone => f.write_str("when run alone"),
            Self::Copies(count) => write!(f, "when run in {count} copies"),
            Self::Policy(name) => write!(f, "under '{name}'"),
        }
    }
}

/// A run of a program alone, which must succeed.
pub(crate) struct RunAlone<'a> {
    /// The name of the program, for errors.
    pub name: &'a str,
    /// Upper limit of the time of the run.
    pub timeout: Duration,
    /// The exit statuses of a successful run.
    pub ok_exit_codes: &'a [u8],
    /// Whether the user has cancelled.
    pub cancel: &'a AtomicBool,
}

/// A program under measurement. Dropping it kills all of its processes.
#[derive(Debug)]
pub(crate) struct MeasuredProcess {
    repeater: Option<Repeater>,
    adopted: Option<AdoptedProgram>,
    stderr: PathBuf,
}

impl MeasuredProcess {
    /// Launches a program without starting it. If `engine` is given, the engine manages the
    /// program.
    pub fn launch(
        engine: Option<&EngineHandle>,
        mut spec: LaunchSpec,
        adopt: AdoptOptions,
        stderr: &Path,
    ) -> Result<Self, RunError> {
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

    /// Returns the answer with which the engine began to manage the program; `None` without an
    /// engine.
    pub fn adopted(&self) -> Option<&AdoptedProgram> {
        self.adopted.as_ref()
    }

    /// Returns the number of the program in the engine.
    pub fn id(&self) -> Option<ProgramId> {
        self.adopted.as_ref().map(|adopted| adopted.id)
    }

    /// Starts a repetition.
    pub fn start(&mut self) -> Result<(), RunError> {
        let repeater = self.repeater.as_mut();
        Ok(repeater.map_or(Ok(()), Repeater::start)?)
    }

    /// Waits for the end of the current repetition.
    pub fn finish(&mut self) -> Result<Repetition, RunError> {
        let repeater = self.repeater.as_mut().ok_or(RunError::Cancelled)?;
        Ok(repeater.finish()?)
    }

    /// Returns a descriptor that is readable when a repetition has ended.
    pub fn report_fd(&self) -> Option<BorrowedFd<'_>> {
        self.repeater.as_ref().map(Repeater::report_fd)
    }

    /// Waits for the end of the repetition. During the wait, checks `cancel` and calls `tick`.
    /// Returns `None` if the repetition has not ended within `timeout`.
    pub fn wait(
        &mut self,
        timeout: Duration,
        cancel: &AtomicBool,
        mut tick: impl FnMut(),
    ) -> Result<Option<Repetition>, RunError> {
        let began = Instant::now();
        while wait_readable(&[self.report_fd()], cancel)?.is_empty() {
            if began.elapsed() > timeout {
                return Ok(None);
            }
            tick();
        }
        self.finish().map(Some)
    }

    /// Waits for the end of a run alone, as [`Self::wait`] does.
    ///
    /// # Errors
    /// The run fails or does not end in time, or the user has cancelled.
    pub fn complete_alone(
        &mut self,
        run: &RunAlone<'_>,
        tick: impl FnMut(),
    ) -> Result<Repetition, RunError> {
        let (name, condition) = (run.name.to_owned(), RunCondition::Alone);
        let Some(ended) = self.wait(run.timeout, run.cancel, tick)? else {
            return Err(RunError::TimedOut {
                name,
                condition,
                seconds: run.timeout.as_secs_f64(),
            });
        };
        let exit = ended.exit;
        match exit.status.is_some_and(|s| run.ok_exit_codes.contains(&s)) {
            true => Ok(ended),
            false => Err(RunError::Failed {
                name,
                exit,
                condition,
                stderr: self.stderr_tail(),
            }),
        }
    }

    /// Returns the end of the program's standard error.
    pub fn stderr_tail(&self) -> String {
        file_tail(&self.stderr)
    }
}

impl Drop for MeasuredProcess {
    fn drop(&mut self) {
        drop(self.repeater.take());
        if let Some(adopted) = &self.adopted {
            // Also kills processes that left the session of the program.
            usher_act::kill_all(&adopted.home);
        }
    }
}

/// Returns the indices of the descriptors that became readable within [`TICK`].
pub(crate) fn wait_readable(
    fds: &[Option<BorrowedFd<'_>>],
    cancel: &AtomicBool,
) -> Result<Vec<usize>, RunError> {
    if cancel.load(Ordering::Relaxed) {
        return Err(RunError::Cancelled);
    }
    let open = fds.iter().enumerate();
    let open = open.filter_map(|(at, fd)| Some((at, fd.as_ref()?.as_fd())));
    let (indices, mut polled): (Vec<_>, Vec<_>) = open
        .map(|(at, fd)| (at, PollFd::from_borrowed_fd(fd, PollFlags::IN)))
        .unzip();
    let tick = Timespec {
        tv_sec: 0,
        tv_nsec: TICK.as_nanos() as i64,
    };
    // Errors are ignored: an interrupted `poll` only returns early.
    let _ = poll(&mut polled, Some(&tick));
    if cancel.load(Ordering::Relaxed) {
        return Err(RunError::Cancelled);
    }
    let ready = polled.iter().zip(indices);
    let ready = ready.filter(|(fd, _)| !fd.revents().is_empty());
    Ok(ready.map(|(_, at)| at).collect())
}

pub(crate) fn file_tail(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let end = &bytes[bytes.len().saturating_sub(STDERR_BYTES)..];
    String::from_utf8_lossy(end).trim().to_owned()
}

/// Returns the end of a program's standard error in a form that is appended to an error message.
pub(crate) fn stderr_text(stderr: &str) -> String {
    let words: Vec<_> = stderr.split_whitespace().collect();
    match words.is_empty() {
        true => String::new(),
        false => format!("; standard error of the program: {}", words.join(" ")),
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The reasons for which the daemon rejects a call, and their conversion to errors of the Varlink
//! interface `org.usher.Usher1`. An error of the engine for which the interface has no separate
//! error is reported as `Failed`, with its text.

use usher_act::ActError;
use usher_host::engine::EngineError;

use crate::api::VarlinkCallError;
use crate::failure;

/// Why a call was refused.
#[derive(Debug)]
pub enum Refusal {
    /// An argument is invalid.
    BadArgument {
        /// The argument.
        argument: &'static str,
        /// The reason.
        reason: String,
    },
    /// No managed program has this name or number.
    NoSuchProgram(String),
    /// Only root and the daemon's user, with this number, may make the request.
    NotPermitted(u32),
    /// The engine rejected the call.
    Engine(EngineError),
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl Refusal {
    /// Answers the call with this error.
    pub fn reply(self, call: &mut (impl VarlinkCallError + ?Sized)) -> varlink::Result<()> {
        match self {
            Self::BadArgument { argument, reason } => {
                call.reply_bad_argument(argument.to_owned(), reason)
            }
            Self::NoSuchProgram(program) => call.reply_no_such_program(program),
            Self::NotPermitted(owner) => call.reply_not_permitted(owner.into()),
            Self::Engine(error) => reply_engine(error, call),
        }
    }
}

fn reply_engine(
    error: EngineError,
    call: &mut (impl VarlinkCallError + ?Sized),
) -> varlink::Result<()> {
    match error {
        EngineError::Gone { pid } | EngineError::Act(ActError::Gone { pid }) => {
            call.reply_no_such_process(pid.into())
        }
        EngineError::Ended { pid } => call.reply_process_ended(pid.into()),
        EngineError::NotYours { pid, owner, .. } => call.reply_not_yours(pid.into(), owner.into()),
        EngineError::KernelThread { pid } => call.reply_kernel_thread(pid.into()),
        EngineError::Managed { pid, id } => call.reply_already_managed(pid.into(), to_int(id.0)),
        EngineError::Unknown(id) => call.reply_no_such_program(id.to_string()),
        EngineError::TooMany { limit, .. } => call.reply_quota_exceeded(
            "programs per user".to_owned(),
            to_int(limit),
            "detach one of the programs ('usher detach') or wait until one has ended".to_owned(),
        ),
        EngineError::Act(ActError::TooManyTrees { trees, .. }) => call.reply_quota_exceeded(
            "process trees per program".to_owned(),
            to_int(trees),
            "attach the process without a group, or with another group".to_owned(),
        ),
        EngineError::Heartbeat { .. } => {
            call.reply_bad_argument("heartbeat".to_owned(), error.to_string())
        }
        EngineError::Bounds { .. } => {
            call.reply_bad_argument("bounds".to_owned(), error.to_string())
        }
        EngineError::Weight { .. } => {
            call.reply_bad_argument("weight".to_owned(), error.to_string())
        }
        EngineError::Ignored { reason } => call.reply_ignored(reason),
        EngineError::Stopped => call.reply_stopping(),
        other => call.reply_failed(failure::line(&other.into())),
    }
}

/// Converts to Varlink's signed integers; no count reaches the limit.
pub fn to_int(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

// SPDX-License-Identifier: GPL-2.0-only
//! The errors of calls to a daemon, as texts that name the cause.

use std::fmt;
use std::io;

use crate::api::{self, ErrorKind};

/// An error of the daemon, as text.
#[derive(Debug)]
pub struct DaemonError {
    pub(super) words: String,
    /// The program that the process belongs to already.
    part_of: Option<i64>,
    /// The process has ended.
    is_gone: bool,
    /// The daemon did not answer in time.
    pub(super) is_late: bool,
    /// The answer does not match the interface of this version of Usher.
    pub(super) is_strange: bool,
    /// The daemon ends, or ended before it replied.
    pub(super) is_ending: bool,
}

impl DaemonError {
    /// Returns the number of the program to which a process already belongs, if this is the reason
    /// for the error of a registration.
    pub fn part_of(error: &anyhow::Error) -> Option<i64> {
        error.downcast_ref::<Self>()?.part_of
    }

    /// Returns whether an error reports that the process has ended.
    pub fn is_gone(error: &anyhow::Error) -> bool {
        error
            .downcast_ref::<Self>()
            .is_some_and(|error| error.is_gone)
    }

    /// Returns whether the daemon did not carry out the call because it ends or has ended, so that
    /// the call may be made to another daemon.
    pub fn is_ending(error: &anyhow::Error) -> bool {
        error
            .downcast_ref::<Self>()
            .is_some_and(|error| error.is_ending)
    }

    /// Returns whether an error is that of a daemon that listens and does not end: it rejected the
    /// call, or did not answer in time.
    pub fn is_lasting(error: &anyhow::Error) -> bool {
        error
            .downcast_ref::<Self>()
            .is_some_and(|error| !error.is_ending)
    }

    /// Returns whether an error reports that the daemon did not answer in time.
    pub fn is_late(error: &anyhow::Error) -> bool {
        error
            .downcast_ref::<Self>()
            .is_some_and(|error| error.is_late)
    }
}

impl fmt::Display for DaemonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for DaemonError {}

impl From<api::Error> for DaemonError {
    fn from(error: api::Error) -> Self {
        use ErrorKind as E;
        let part_of = match error.kind() {
            E::AlreadyManaged(Some(e)) => Some(e.id),
            _ => None,
        };
        Self {
            words: words(&error),
            part_of,
            is_gone: matches!(error.kind(), E::NoSuchProcess(_) | E::ProcessEnded(_)),
            is_late: has_timed_out(error.source_varlink_kind()),
            is_strange: is_strange(&error),
            is_ending: matches!(error.kind(), E::Stopping(_))
                || is_closed(error.source_varlink_kind()),
        }
    }
}

/// Describes an error: its cause and, if there is one, the remedy.
fn words(error: &api::Error) -> String {
    use ErrorKind as E;
    match error.kind() {
        E::NoSuchProcess(Some(e)) => format!("process {} does not exist", e.pid),
        E::ProcessEnded(Some(e)) => format!(
            "process {} has ended and remains as a zombie until its parent reads its exit \
                 status",
            e.pid
        ),
        E::NotYours(Some(e)) => format!(
            "process {} belongs to user {}; only that user and root may manage it",
            e.pid, e.owner
        ),
        E::KernelThread(Some(e)) => {
            format!(
                "process {} is a kernel thread; Usher can manage only programs",
                e.pid
            )
        }
        E::NoSuchProgram(Some(e)) => format!(
            "no managed program has the name or number '{}': 'usher status' lists the managed \
                 programs",
            e.program
        ),
        E::AlreadyManaged(Some(e)) => {
            format!(
                "process {} already belongs to the managed program {}; to manage the process \
                     differently, release that program first by 'usher detach id:{}'",
                e.pid, e.id, e.id
            )
        }
        E::Ignored(Some(e)) => e.reason.clone(),
        E::NotPermitted(Some(e)) => format!(
            "only root and the user of the daemon ({}) may make this request",
            e.owner
        ),
        E::QuotaExceeded(Some(e)) => format!(
            "the quota '{}' of {} is exceeded: {}",
            e.quota, e.limit, e.remedy
        ),
        E::BadArgument(Some(e)) => format!("{}: {}", e.argument, e.reason),
        E::Failed(Some(e)) => e.reason.clone(),
        E::Stopping(_) => "the daemon is ending and accepts no more requests".to_owned(),
        _ => transport(error),
    }
}

/// Returns whether an error is the end of the time for an answer.
pub fn has_timed_out(kind: Option<&varlink::ErrorKind>) -> bool {
    matches!(
        kind,
        Some(varlink::ErrorKind::Io(
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ))
    )
}

/// Returns whether an error means that the daemon has closed the connection.
pub(super) fn is_closed(kind: Option<&varlink::ErrorKind>) -> bool {
    matches!(
        kind,
        Some(
            varlink::ErrorKind::ConnectionClosed
                | varlink::ErrorKind::Io(
                    io::ErrorKind::BrokenPipe
                        | io::ErrorKind::ConnectionReset
                        | io::ErrorKind::ConnectionAborted
                        | io::ErrorKind::NotConnected
                        | io::ErrorKind::UnexpectedEof
                )
        )
    )
}

/// Returns whether the error means that daemon and client have different versions: the daemon does
/// not know the call, or the client does not know the reply.
fn is_strange(error: &api::Error) -> bool {
    use varlink::ErrorKind as V;
    matches!(
        error.source_varlink_kind(),
        Some(
            V::SerdeJsonDe(_)
                | V::SerdeJsonSer(_)
                | V::MethodNotFound(_)
                | V::MethodNotImplemented(_)
                | V::InterfaceNotFound(_)
                | V::InvalidParameter(_)
        )
    )
}
/// Describes an error of the transport below the interface.
fn transport(error: &api::Error) -> String {
    match error.source_varlink_kind() {
        Some(varlink::ErrorKind::ConnectionClosed) => "the daemon closed the connection without a \
                                                       reply"
            .to_owned(),
        Some(kind) => format!("the connection to the daemon failed: {kind}"),
        None => "this version of usher cannot interpret the daemon's reply; restart the daemon"
            .to_owned(),
    }
}

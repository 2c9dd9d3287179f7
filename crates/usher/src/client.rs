// SPDX-License-Identifier: GPL-2.0-only
//! The client side of the daemon's interface: finds a daemon that this user may trust, makes calls
//! with time limits, and converts errors to text.
//!
//! 1. The client tries the sockets of the system daemon and of the user's own daemon, in this
//!    order. If the user names a runtime directory, the client tries only the socket in this
//!    directory.
//! 2. The client skips a socket in a directory to which other users can write. The client also
//!    rejects a socket that another user (other than root) created, and a daemon of another PID
//!    namespace.
//! 3. The client sends a call and waits for the reply. If the registration or the attach of a
//!    program times out, the client shuts the connection down: the daemon then undoes the call,
//!    unless its reply had already been delivered.
//!
//! Bounds:
//!
//! - Each read and each write of the socket waits for at most 10 s (`connection::ANSWER_TIMEOUT`), or
//!   for the limit that the caller of [`Daemon::find_with`] gives.
//! - A connection waits for the same time while the daemon's queue of new connections is full.
//! - Launchers wait for less time, and end the wait when a signal arrives ([`WaitLimits`]).
//! - The client repeats no call. After a reply of another version, the client asks the daemon for
//!   its version by one more call.
//! - The path of a socket has at most 107 bytes.
//! - Each error becomes a text that names the cause. After a timeout, `client::unanswered` adds the
//!   state of the daemon's process. [`Daemon::need`] also names the command that starts a daemon.

mod calls;
mod connection;
mod daemon;
mod daemons;
mod error;
mod search;
mod unanswered;

pub use calls::{AttachOptions, RegisterRequest};
pub use connection::{ENDED_BY_SIGNAL, ReadTimeout, TrustedConnection, WaitLimits};
pub use daemon::Daemon;
pub use daemons::{Daemons, QueriedDaemon};
pub use error::{DaemonError, has_timed_out};
pub use search::{ProcessSearch, check_unmanaged};
pub use unanswered::ListeningProcess;

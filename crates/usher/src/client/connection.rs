// SPDX-License-Identifier: GPL-2.0-only
//! Connections to processes of root or of this user, with time limits: a wait ends at its limit, or
//! when another descriptor becomes readable.

use std::io::{self, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::SocketAddrUnix;
use usher_host::text;

use super::unanswered::ListeningProcess;
use crate::peer;
use crate::runtime;

/// Default upper limit of the time for which one read or write of the daemon's socket waits.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason of a command that a signal requested to end while it waited for a daemon.
pub const ENDED_BY_SIGNAL: &str = "a signal arrived before the daemon answered";

/// How long, and until which event, a command waits for a daemon.
#[derive(Debug, Clone, Copy)]
pub struct WaitLimits<'a> {
    /// Upper limit of one connection, and of one read or write.
    pub timeout: Duration,
    /// A descriptor that ends each wait when it becomes readable.
    pub end: Option<BorrowedFd<'a>>,
}

impl Default for WaitLimits<'_> {
    fn default() -> Self {
        Self {
            timeout: ANSWER_TIMEOUT,
            end: None,
        }
    }
}

impl WaitLimits<'_> {
    /// Returns whether the waits must end.
    pub fn must_end(&self) -> bool {
        self.end.is_some_and(is_readable)
    }
}

/// A descriptor that ends the waits of a connection when it becomes readable, until it is ignored.
#[derive(Debug)]
pub(super) struct EndOfWaits {
    fd: Option<OwnedFd>,
    is_ignored: AtomicBool,
}

impl EndOfWaits {
    fn new(fd: Option<BorrowedFd<'_>>) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            fd: fd.map(|fd| fd.try_clone_to_owned()).transpose()?,
            is_ignored: AtomicBool::new(false),
        }))
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.fd.as_ref().map(AsFd::as_fd);
        fd.filter(|_| !self.is_ignored.load(Ordering::Relaxed))
    }

    pub fn ignore(&self) {
        self.is_ignored.store(true, Ordering::Relaxed);
    }
}

/// The time limit of each read of one connection.
#[derive(Debug, Clone)]
pub struct ReadTimeout(Arc<Mutex<Duration>>);

impl ReadTimeout {
    fn new(timeout: Duration) -> Self {
        Self(Arc::new(Mutex::new(timeout)))
    }

    /// Returns the limit.
    pub fn get(&self) -> Duration {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the limit of the reads that begin later.
    pub fn set(&self, timeout: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }
}

/// Reads from a daemon's socket, until the time limit or the readiness of another descriptor. Both
/// are an error of the kind `TimedOut`.
struct LimitedReader {
    stream: UnixStream,
    timeout: ReadTimeout,
    end: Arc<EndOfWaits>,
}

impl Read for LimitedReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let deadline = Instant::now() + self.timeout.get();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let mut fds = vec![PollFd::new(&self.stream, PollFlags::IN)];
            let end = self.end.fd();
            fds.extend(end.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
            match rustix::event::poll(&mut fds, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) if !fds[0].revents().is_empty() => return self.stream.read(bytes),
                Ok(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }
}

/// Returns whether a descriptor is readable now.
fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Connects to a socket. While the queue of the listening process is full, waits for at most
/// `timeout`.
pub(super) fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    match peer::connect(&SocketAddrUnix::new(path)?, timeout) {
        Err(rustix::io::Errno::AGAIN) => {
            let text = format!(
                "the process accepts no connections within {}",
                text::seconds(timeout.as_secs_f64())
            );
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
        connected => Ok(connected?),
    }
}
/// A connection to a process of root or of this user, in this PID namespace.
pub struct TrustedConnection {
    /// The Varlink connection.
    pub connection: Arc<RwLock<varlink::Connection>>,
    /// The same socket.
    pub stream: UnixStream,
    /// The time limit of each read.
    pub timeout: ReadTimeout,
    /// The process that listens.
    pub process: ListeningProcess,
    /// The end of the waits.
    pub(super) end: Arc<EndOfWaits>,
}

impl TrustedConnection {
    /// Connects to the socket. The limits apply to the connection and to each read and write.
    ///
    /// # Errors
    /// No process accepts the connection within the limit, or this user cannot trust the process.
    pub fn open(path: &Path, limits: &WaitLimits<'_>) -> io::Result<Self> {
        runtime::check_socket_path(path, runtime::SHORTER_DIR)?;
        let stream = connect(path, limits.timeout)?;
        let owner = peer::credentials(&stream)?;
        if owner.uid != 0 && owner.uid != rustix::process::geteuid().as_raw() {
            // Another user created the socket, at the path of the daemon's socket.
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let Some(pid) = owner.pid else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        stream.set_read_timeout(Some(limits.timeout))?;
        let end = EndOfWaits::new(limits.end)?;
        let timeout = ReadTimeout::new(limits.timeout);
        let reader = LimitedReader {
            stream: stream.try_clone()?,
            timeout: timeout.clone(),
            end: end.clone(),
        };
        let mut connection = varlink::Connection::default();
        connection.reader = Some(BufReader::new(Box::new(reader)));
        connection.writer = Some(Box::new(stream.try_clone()?));
        Ok(Self {
            connection: Arc::new(RwLock::new(connection)),
            stream,
            timeout,
            process: ListeningProcess {
                pid,
                uid: owner.uid,
            },
            end,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_longer_time_limit_applies_to_the_next_read() {
        let (stream, mut peer) = UnixStream::pair().unwrap();
        let timeout = ReadTimeout::new(Duration::ZERO);
        let mut reader = LimitedReader {
            stream,
            timeout: timeout.clone(),
            end: EndOfWaits::new(None).unwrap(),
        };
        let mut byte = [0];
        let late = reader.read(&mut byte).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        timeout.set(Duration::from_secs(600));
        let stat = format!("/proc/self/task/{}/stat", rustix::thread::gettid());
        let answers = std::thread::spawn(move || {
            // The answer is sent when the reader waits.
            while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
                std::thread::yield_now();
            }
            peer.write_all(b"a").unwrap();
        });
        assert_eq!(reader.read(&mut byte).unwrap(), 1);
        answers.join().unwrap();
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The process at the other end of a Unix socket, as reported by the kernel (`SO_PEERCRED`): its
//! user id and its pid. The kernel stores both when the peer connects, so that they stay valid for
//! the connection even if the peer has ended or changed its user id since. Also connects to sockets.

pub mod users;

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// `SO_PEERCRED` of a socket: the state when the peer connected or listened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user id.
    pub uid: u32,
    /// Pid; `None` for a process that is not visible in this PID namespace.
    pub pid: Option<i32>,
}

/// Connects to a Unix socket. While the queue of the listening process is full, waits for at most
/// `timeout`.
///
/// # Errors
/// No process listens, or a system call failed; `EAGAIN`: the queue stayed full.
pub fn connect(address: &SocketAddrUnix, timeout: Duration) -> rustix::io::Result<UnixStream> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The kernel applies the limit for sending also to the connecting of a Unix socket.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))?;
    rustix::net::connect(&socket, address)?;
    Ok(socket.into())
}

/// Reads the peer's credentials.
///
/// rustix has the same call, but its type for pids cannot be 0, which the kernel reports for a
/// process of another PID namespace.
///
/// # Errors
/// The descriptor is no connected Unix socket.
pub fn credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of_val(&found) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of the structure.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    match result {
        0 => Ok(Credentials {
            uid: found.uid,
            pid: Some(found.pid).filter(|&pid| pid > 0),
        }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn both_ends_of_a_pair_are_this_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        let own = Credentials {
            uid: rustix::process::geteuid().as_raw(),
            pid: Some(std::process::id() as i32),
        };
        assert_eq!(credentials(&a).unwrap(), own);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for several children at the same time, and forwards the launcher's signals to those that
//! still run.
//!
//! A wait polls the children and the signals, without a time limit. Each event costs linear time in
//! the number of children.

use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::{ChildProcess, Exit, Forwarder};

/// Waits until all children have ended. Returns their exits in the order of the children.
///
/// # Errors
/// Other code has already waited for a child.
pub fn wait_for_all(
    children: &mut [ChildProcess],
    signals: &mut Forwarder,
) -> io::Result<Vec<Exit>> {
    let mut exits: Vec<Option<Exit>> = vec![None; children.len()];
    while exits.iter().any(Option::is_none) {
        let running: Vec<&ChildProcess> = children
            .iter()
            .zip(&exits)
            .filter(|(_, exit)| exit.is_none())
            .map(|(child, _)| child)
            .collect();
        let fds = running.iter().map(|child| child.pidfd());
        let fds = fds.chain([signals.as_fd()]);
        let mut fds: Vec<PollFd<'_>> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        drop(fds);
        signals.forward_to(&running);
        for (child, exit) in children.iter_mut().zip(&mut exits) {
            if exit.is_none() {
                *exit = child.try_wait()?;
            }
        }
    }
    Ok(exits.into_iter().flatten().collect())
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the command, forwards its output to the host, and reaps all dead processes, which is a duty
//! of an init process.
//!
//! The loop waits until a pipe has output or a process has died (SIGCHLD), reaps dead processes,
//! and forwards the output. It ends when the command has ended. The wait has no time limit, because
//! the host limits the time of the guest.
//!
//! At each turn of the loop, at most 1 MiB of each pipe is forwarded. Output that other processes
//! write after the end of the command is lost. An error of a port ends the loop and refuses the
//! job.
//!
//! The command writes to pipes instead of the ports to the host. Programs may reopen /dev/stderr,
//! but a port can be opened only once.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::process::{Pid, WaitOptions, WaitStatus};

use super::refusal::{Refusal, system_message};
use crate::job::GuestJob;

/// Maximum size of a transfer in bytes. The next constant is the maximum number of transfers before
/// the loop does other work. Their product, 1 MiB, is the maximum capacity of a pipe: a command
/// that writes continuously cannot delay other work.
const CHUNK_BYTES: usize = 32 << 10;
const CHUNKS: usize = 32;

/// A pipe from the command, and the port to which its data are forwarded.
struct CommandPipe<'a> {
    from: File,
    to: &'a mut File,
    open: bool,
}

/// Runs the command until it ends, and returns its exit status.
pub(super) fn run(job: &GuestJob, out: &mut File, err: &mut File) -> Result<u8, Refusal> {
    let io = |doing: &'static str| move |why: io::Error| Refusal::because(doing, why);
    let (mut death, deaths) = UnixStream::pair().map_err(io("creating a socket"))?;
    signal_hook::low_level::pipe::register(libc::SIGCHLD, deaths)
        .map_err(io("installing the handler of SIGCHLD"))?;
    death
        .set_nonblocking(true)
        .map_err(io("making the socket for SIGCHLD non-blocking"))?;
    let (command, from_out, from_err) = start(job)?;
    let mut streams = [
        CommandPipe {
            from: from_out,
            to: out,
            open: true,
        },
        CommandPipe {
            from: from_err,
            to: err,
            open: true,
        },
    ];
    loop {
        wait(&streams, &death).map_err(io("waiting for the command"))?;
        let _ = death.read(&mut [0; 64]);
        // Output that a process wrote before its death is in the pipe when the process is reaped.
        // It is therefore forwarded after the reaping.
        let ended = reap(command);
        for stream in &mut streams {
            stream
                .carry()
                .map_err(io("forwarding the command's output"))?;
        }
        if let Some(status) = ended {
            return Ok(status);
        }
    }
}

fn start(job: &GuestJob) -> Result<(Pid, File, File), Refusal> {
    let [program, arguments @ ..] = job.argv.as_slice() else {
        return Err(Refusal(
            crate::OWN_FAILURE,
            "the host sent no command".to_owned(),
        ));
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(job.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(&job.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // SAFETY: the function only calls `setsid`, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        })
    };
    let refused = |why: io::Error| {
        let status = match why.kind() {
            ErrorKind::NotFound => crate::NOT_FOUND,
            _ => crate::NOT_RUNNABLE,
        };
        let why = system_message(&why);
        Refusal(
            status,
            format!("running {program} in {}: {why}", job.directory.display()),
        )
    };
    let mut child = command.spawn().map_err(refused)?;
    let pipes = (
        child.stdout.take().map(OwnedFd::from),
        child.stderr.take().map(OwnedFd::from),
    );
    let (Some(out), Some(err)) = pipes else {
        return Err(Refusal(
            crate::OWN_FAILURE,
            "the command was started without pipes for its output".to_owned(),
        ));
    };
    for pipe in [&out, &err] {
        rustix::fs::fcntl_setfl(pipe, OFlags::NONBLOCK).map_err(|why| {
            Refusal::because("making a pipe for the command's output non-blocking", why)
        })?;
    }
    let pid = Pid::from_child(&child);
    Ok((pid, File::from(out), File::from(err)))
}

fn wait(streams: &[CommandPipe], death: &UnixStream) -> io::Result<()> {
    let open = streams
        .iter()
        .filter(|stream| stream.open)
        .map(|stream| stream.from.as_fd());
    let all = open.chain([death.as_fd()]);
    let mut all: Vec<PollFd> = all
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    match rustix::event::poll(&mut all, None) {
        Err(rustix::io::Errno::INTR) | Ok(_) => Ok(()),
        Err(why) => Err(why.into()),
    }
}

/// Reaps all dead processes. Returns the command's exit status if the command is among them.
fn reap(command: Pid) -> Option<u8> {
    let mut ended = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == command {
            ended = Some(exit_status(status));
        }
    }
    ended
}

fn exit_status(status: WaitStatus) -> u8 {
    let signal = || status.terminating_signal().map(|signal| 128 + signal);
    status
        .exit_status()
        .or_else(signal)
        .map_or(crate::OWN_FAILURE, |status| status as u8)
}

impl CommandPipe<'_> {
    /// Forwards the data in the pipe to the port, at most [`CHUNKS`] transfers.
    fn carry(&mut self) -> io::Result<()> {
        let mut chunk = [0; CHUNK_BYTES];
        for _ in 0..CHUNKS {
            if !self.open {
                break;
            }
            match self.from.read(&mut chunk) {
                Ok(0) => self.open = false,
                Ok(bytes) => self.to.write_all(&chunk[..bytes])?,
                Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }
}

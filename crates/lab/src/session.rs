// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a guest from its start to its end, on the host's side.
//!
//! ```text
//!   this process ── ports (socket pairs) ── QEMU ── virtiofsd ── files
//! ```
//!
//! 1. Create the sockets, and start virtiofsd and QEMU with their ends of the sockets.
//! 2. Send the job to the control port. The guest reads it when it has booted.
//! 3. Forward the command's output and the console. The guest reports over the control port that it
//!    is ready, and later how the command has ended.
//! 4. End when the guest has reported the end of the command, when the control port closes without
//!    such a report (the guest has died), after a signal, or after a time limit.
//! 5. Forward the remaining output, and kill QEMU and virtiofsd.
//!
//! If this process ends for another reason, even by SIGKILL, the kernel kills QEMU and virtiofsd
//! (PR_SET_PDEATHSIG). No files are created: the sockets are pairs, or have abstract names. The
//! last 64 KiB of the console are kept. `vm.rs` sets the two time limits, for the boot and for the
//! whole guest. Output of the command that cannot be forwarded is an error; a copy of the console
//! that cannot be written is not.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::FdFlags;
use rustix::process::Signal;

use crate::LabError;
use crate::emulator::{Emulator, Guest, GuestConnections, virtiofsd};
use crate::job::{CONTROL, ERR, GuestJob, OUT, Report};
use crate::vm::{GuestEnd, Streams};

/// Maximum size of a read in bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// Maximum size of the kept end of the console output, in bytes.
const CONSOLE_BYTES: usize = 64 << 10;

/// Time limits of a guest, from its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum time until the guest is ready.
    pub boot: Duration,
    /// Maximum time until the end of the guest.
    pub whole: Duration,
}

/// The end of a guest, with the measured times.
#[derive(Debug)]
pub(crate) struct EndedGuest {
    pub end: GuestEnd,
    /// The kernel's release; `None` if the guest was never ready.
    pub release: Option<String>,
    pub boot: Duration,
    pub ran: Duration,
    /// The end of the guest's console output.
    pub console: String,
}

/// A child process that is killed on drop.
pub(crate) struct KilledChild(Child);

impl Drop for KilledChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The sockets of the connections between host and guest, at the host's end or at the guest's end.
struct ConnectionEnds {
    out: UnixStream,
    err: UnixStream,
    control: UnixStream,
    console: UnixStream,
}

struct Session<'a, 'b> {
    ours: ConnectionEnds,
    streams: &'a mut Streams<'b>,
    console: Vec<u8>,
    /// The beginning of a message of the guest of which the end has not arrived yet.
    line: Vec<u8>,
    begun: Instant,
    ready: Option<(String, Instant)>,
    end: Option<GuestEnd>,
}

/// Starts a guest, sends the job to the guest, and forwards the guest's output until its end.
pub(crate) fn run(
    emulator: &Emulator,
    guest: &Guest,
    job: &GuestJob,
    limits: &Limits,
    streams: &mut Streams,
) -> Result<EndedGuest, LabError> {
    let begun = Instant::now();
    let (ours, theirs) = ends()?;
    let name = unique_name();
    let _share = share(&name, &theirs.console)?;
    let _qemu = start(emulator, guest, &name, &theirs)?;
    drop(theirs);
    let mut session = Session {
        ours,
        streams,
        console: Vec::new(),
        line: Vec::new(),
        begun,
        ready: None,
        end: None,
    };
    session.hand_over(job)?;
    let end = session.follow(limits)?;
    Ok(session.ended(end))
}

fn pair() -> Result<(UnixStream, UnixStream), LabError> {
    UnixStream::pair().map_err(LabError::io("creating a socket"))
}

fn ends() -> Result<(ConnectionEnds, ConnectionEnds), LabError> {
    let (out, their_out) = pair()?;
    let (err, their_err) = pair()?;
    let (control, their_control) = pair()?;
    let (console, their_console) = pair()?;
    let ours = ConnectionEnds {
        out,
        err,
        control,
        console,
    };
    let theirs = ConnectionEnds {
        out: their_out,
        err: their_err,
        control: their_control,
        console: their_console,
    };
    Ok((ours, theirs))
}

/// Returns a name that no other guest has.
fn unique_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.map_or(0, |now| now.as_nanos());
    format!("usher-lab-{}-{number}-{nanos}", std::process::id())
}

/// Starts virtiofsd, which accepts a connection of QEMU at the socket with this abstract name.
fn share(name: &str, console: &UnixStream) -> Result<KilledChild, LabError> {
    let address = SocketAddr::from_abstract_name(name);
    let socket = address.and_then(|address| UnixListener::bind_addr(&address));
    let socket = socket.map_err(LabError::io("creating the socket of virtiofsd"))?;
    let mut command = virtiofsd(socket.as_raw_fd())?;
    spawn(&mut command, vec![socket.as_raw_fd()], console)
        .map_err(LabError::io("starting virtiofsd"))
}

fn start(
    emulator: &Emulator,
    guest: &Guest,
    share: &str,
    theirs: &ConnectionEnds,
) -> Result<KilledChild, LabError> {
    let wires = GuestConnections {
        share,
        console: theirs.console.as_raw_fd(),
        ports: [
            (OUT, theirs.out.as_raw_fd()),
            (ERR, theirs.err.as_raw_fd()),
            (CONTROL, theirs.control.as_raw_fd()),
        ],
    };
    let mut command = emulator.command();
    command.args(guest.arguments(&wires));
    let ports = wires.ports.iter().map(|(_, fd)| *fd);
    let kept = ports.chain([wires.console]).collect();
    spawn(&mut command, kept, &theirs.console).map_err(LabError::io("starting QEMU"))
}

/// Starts a child process that inherits the given descriptors. Its standard streams are the
/// console, it gets no signals from the terminal, and the kernel kills it when this thread ends.
pub(crate) fn spawn(
    command: &mut Command,
    kept: Vec<RawFd>,
    console: &UnixStream,
) -> io::Result<KilledChild> {
    let talk = |fd: BorrowedFd| fd.try_clone_to_owned().map(Stdio::from);
    command
        .stdin(Stdio::null())
        .stdout(talk(console.as_fd())?)
        .stderr(talk(console.as_fd())?)
        .process_group(0);
    let parent = rustix::process::getpid();
    // SAFETY: the function makes only async-signal-safe system calls. The caller keeps the
    // descriptors open until the child has started.
    unsafe {
        command.pre_exec(move || {
            for fd in &kept {
                rustix::io::fcntl_setfd(BorrowedFd::borrow_raw(*fd), FdFlags::empty())?;
            }
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            match rustix::process::getppid() == Some(parent) {
                true => Ok(()),
                // The parent has died before the child requested its death signal, so the child
                // must not start.
                false => Err(io::ErrorKind::BrokenPipe.into()),
            }
        })
    };
    command.spawn().map(KilledChild)
}

impl Session<'_, '_> {
    /// Sends the job, without waiting until the guest reads it.
    fn hand_over(&mut self, job: &GuestJob) -> Result<(), LabError> {
        let line = serde_json::to_string(job).unwrap_or_default();
        let length = line.len();
        let mut control = &self.ours.control;
        let set = |size| rustix::net::sockopt::set_socket_send_buffer_size(control, size);
        // The buffer of the socket is enlarged to the size of the job, so that the write does not
        // wait for the guest.
        set(2 * length + CHUNK_BYTES).map_err(|why| {
            LabError::io("enlarging the send buffer of the socket to the guest")(why.into())
        })?;
        control
            .set_nonblocking(true)
            .map_err(LabError::io("making the socket to the guest non-blocking"))?;
        control
            .write_all(format!("{line}\n").as_bytes())
            .map_err(LabError::io(format!(
                "sending the command and its environment ({length} bytes) to the guest"
            )))
    }

    /// Forwards all output until the guest has ended.
    fn follow(&mut self, limits: &Limits) -> Result<GuestEnd, LabError> {
        loop {
            let now = Instant::now();
            let until = match &self.ready {
                None => (self.begun + limits.boot).min(self.begun + limits.whole),
                Some(_) => self.begun + limits.whole,
            };
            if until <= now {
                return Ok(GuestEnd::TimedOut);
            }
            let ready = self.wait(until - now, self.streams.interrupt)?;
            if ready[4] {
                return Ok(GuestEnd::Interrupted);
            }
            self.take_console(ready[3]);
            self.pass_on([ready[0], ready[1]])?;
            let alive = !ready[2] || self.listen()?;
            if let Some(end) = self.end.take() {
                self.drain()?;
                return Ok(end);
            }
            if !alive {
                self.drain()?;
                return Ok(GuestEnd::Died);
            }
        }
    }

    /// Waits for input, at most for the time `most`. Returns whether standard output, standard
    /// error, the control port, the console and the interrupt descriptor are readable, in this
    /// order.
    fn wait(&self, most: Duration, interrupt: Option<BorrowedFd>) -> Result<[bool; 5], LabError> {
        let ConnectionEnds {
            out,
            err,
            control,
            console,
        } = &self.ours;
        let sources = [out.as_fd(), err.as_fd(), control.as_fd(), console.as_fd()];
        let sources = sources.into_iter().chain(interrupt);
        let mut polled: Vec<PollFd> = sources
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let most = Timespec::try_from(most).ok();
        match rustix::event::poll(&mut polled, most.as_ref()) {
            Err(rustix::io::Errno::INTR) | Ok(_) => {}
            Err(why) => return Err(LabError::io("waiting for the guest")(why.into())),
        }
        let mut ready = [false; 5];
        for (ready, polled) in ready.iter_mut().zip(&polled) {
            *ready = !polled.revents().is_empty();
        }
        Ok(ready)
    }

    fn take_console(&mut self, ready: bool) {
        let mut chunk = [0; CHUNK_BYTES];
        let read = if ready {
            (&self.ours.console).read(&mut chunk)
        } else {
            Ok(0)
        };
        let new = &chunk[..read.unwrap_or(0)];
        if let Some(copy) = &mut self.streams.console {
            // The error is ignored, because a copy of the console is not needed to run the guest.
            let _ = copy.write_all(new);
        }
        self.console.extend_from_slice(new);
        let surplus = self.console.len().saturating_sub(CONSOLE_BYTES);
        self.console.drain(..surplus);
    }

    fn pass_on(&mut self, ready: [bool; 2]) -> Result<(), LabError> {
        let ConnectionEnds { out, err, .. } = &self.ours;
        let ways = [(out, &mut *self.streams.out), (err, &mut *self.streams.err)];
        for (ready, (from, to)) in ready.into_iter().zip(ways) {
            let mut chunk = [0; CHUNK_BYTES];
            let mut from: &UnixStream = from;
            let bytes = if ready { from.read(&mut chunk) } else { Ok(0) };
            let bytes = bytes.map_err(LabError::io("reading the guest's output"))?;
            let passed = to.write_all(&chunk[..bytes]).and_then(|()| to.flush());
            passed.map_err(LabError::io("forwarding the guest's output"))?;
        }
        Ok(())
    }

    /// Reads messages of the guest. Returns false if the guest has closed the port, so that no more
    /// messages can follow.
    fn listen(&mut self) -> Result<bool, LabError> {
        let mut chunk = [0; CHUNK_BYTES];
        let bytes = match (&self.ours.control).read(&mut chunk) {
            Ok(0) => return Ok(false),
            Ok(bytes) => bytes,
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(why) if why.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
            Err(why) => return Err(LabError::io("reading messages from the guest")(why)),
        };
        self.line.extend_from_slice(&chunk[..bytes]);
        while let Some(at) = self.line.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=at).collect();
            let report: Report = serde_json::from_slice(&line).map_err(|why| {
                LabError::Guest(format!("the guest sent an invalid message: {why}"))
            })?;
            self.note(report);
        }
        Ok(true)
    }

    fn note(&mut self, report: Report) {
        match report {
            Report::Ready { release } => self.ready = Some((release, Instant::now())),
            Report::Refused { status, reason } => {
                self.end = Some(GuestEnd::Refused { status, reason })
            }
            Report::Ended { status } => self.end = Some(GuestEnd::Exited { status }),
        }
    }

    /// Forwards all output that the guest has written before its end.
    fn drain(&mut self) -> Result<(), LabError> {
        loop {
            let ready = self.wait(Duration::ZERO, None)?;
            let written = |stream: &UnixStream| rustix::io::ioctl_fionread(stream).unwrap_or(0) > 0;
            let out = ready[0] && written(&self.ours.out);
            let err = ready[1] && written(&self.ours.err);
            let console = ready[3] && written(&self.ours.console);
            self.take_console(console);
            self.pass_on([out, err])?;
            if !(out || err || console) {
                return Ok(());
            }
        }
    }

    fn ended(self, end: GuestEnd) -> EndedGuest {
        let now = Instant::now();
        let up = self.ready.as_ref().map_or(now, |(_, at)| *at);
        EndedGuest {
            end,
            release: self.ready.map(|(release, _)| release),
            boot: up - self.begun,
            ran: now - up,
            console: String::from_utf8_lossy(&self.console).into_owned(),
        }
    }
}

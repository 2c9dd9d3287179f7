// SPDX-License-Identifier: GPL-2.0-only
//! The machine claim: decides which daemon of this machine may give seats.
//!
//! Two daemons that plan the same CPUs would give the same CPUs to different programs. Each daemon
//! therefore claims the machine before it gives a seat. A daemon without the claim *abstains*: it
//! gives no seats, and its programs share all CPUs.
//!
//! A claim is a listening socket in the abstract namespace: binding is atomic, needs no file that
//! several users can write, and the kernel releases it when the process dies. There are two names,
//! one for the system daemon and one for users' daemons:
//!
//! - `system`, bound by a daemon of root. When another user holds this name, the system daemon
//!   gives seats without the name, and binds it as soon as it is free.
//! - `user`, bound by the daemon of any other user.
//!
//! Protocol:
//!
//! 1. A daemon binds its name. When the name is in use, the daemon connects to the holder of the
//!    name, abstains until the connection ends, and starts the protocol again.
//! 2. A user's daemon then connects to `system`. When a daemon of root listens on `system`, the
//!    user's daemon gives up `user` and abstains until the connection ends.
//! 3. The system daemon then connects to `user`. The daemon that holds `user` releases its seats
//!    when root connects, and then gives up the name. The system daemon begins to give seats when
//!    its connection to `user` ends, or 2 s after the connection was made ([`HANDOVER`]).
//!
//! Each daemon binds its own name before it connects to the other name. Of two daemons that start
//! at the same time, at least one therefore notices the other. The holder keeps the connections of
//! the abstaining daemons open; they end with its process.
//!
//! Bounds:
//!
//! - Attempts are 20 ms apart. After 50 attempts without a stable state, about 1 s, the daemon
//!   abstains and continues its attempts.
//! - While another user holds `system`, the system daemon tries to bind the name about once per
//!   second. The pause is 3 s if a user's daemon keeps its seats.
//! - A holder keeps 256 connections open. A further daemon is disconnected and tries again.
//! - A connection to a holder with a full queue of new connections fails after 1 s
//!   ([`CONNECT_TIMEOUT`]). The user of such a holder is unknown. The system daemon then treats the
//!   holder as that of another user, and a user's daemon abstains and tries again.
//!
//! Limits: if a daemon of root that holds `system` accepts no connections and its queue is full, a
//! second daemon of root gives seats, too. While another user holds `system`, a second daemon of root and users' daemons do not
//! notice the system daemon. Abstract sockets belong to a network namespace, so a daemon in a
//! container with its own network is not detected. If a process binds `user` without giving seats,
//! other users' daemons can run programs, but give no seats. The message of the abstaining daemons
//! names the process; the remedy is to run the system daemon.

use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::net::SocketAddrUnix;

use crate::peer::{self, Credentials};

/// Environment variable with a name for the claim; daemons with different names give seats
/// independently of one another.
pub const CLAIM_NAME: &str = "USHER_CLAIM_NAME";

/// Longest time for which the system daemon, once connected, waits until a user's daemon has
/// released its seats.
const HANDOVER: Duration = Duration::from_secs(2);
/// Longest wait for a place in the queue of a holder's new connections. Without this limit, a user
/// could bind a name, fill the queue and thereby block the start of the system daemon.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause after an attempt that found no stable state.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Consecutive attempts without a stable state after which the daemon abstains. The attempts
/// continue.
const ATTEMPTS_MAX: u32 = 50;
/// Pause of the system daemon between attempts to bind a name that another user
/// holds.
const REBIND_PAUSE: Duration = Duration::from_secs(1);
/// Upper limit of connections that a holder keeps open; further connections are closed, and retry.
const KEPT_MAX: usize = 256;

/// The two names of the claim, and which of them this process binds.
#[derive(Debug, Clone)]
pub struct Claim {
    own: SocketAddr,
    other: SocketAddr,
    is_system: bool,
}

/// The result of a step of the protocol.
enum Step {
    /// The claim is held.
    Held(UnixListener),
    /// Another user holds the name of the system daemon, which seats without it.
    Unlisted,
    /// Another daemon holds the claim: the reason, and the connection that ends with that daemon.
    Refused(String, UnixStream),
    /// A holder of a name accepts no connections, and may be a daemon with the claim.
    Unanswered,
    /// The state changed during the step.
    Again,
}

impl Claim {
    /// The claim of this process's user; `name` separates independent groups of
    /// daemons (at most 64 bytes are used).
    ///
    /// # Errors
    /// The name contains a NUL byte.
    pub fn new(name: &str) -> io::Result<Self> {
        Self::of(name, rustix::process::geteuid().is_root())
    }

    fn of(name: &str, is_system: bool) -> io::Result<Self> {
        let short: String = name.chars().take(16).collect();
        let address = |side: &str| {
            SocketAddr::from_abstract_name(format!("org.usher.Usher1.seats.{side}.{short}"))
        };
        let (system, user) = (address("system")?, address("user")?);
        let (own, other) = if is_system {
            (system, user)
        } else {
            (user, system)
        };
        Ok(Self {
            own,
            other,
            is_system,
        })
    }

    /// Follows the claim on a thread of its own, from now until this process ends. Calls `changed`
    /// with the reason why no seats may be given, or with `None` if seats may be given. `changed`
    /// must return only when the present seats are released. The first call happens before this
    /// function returns.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn follow(self, changed: impl Fn(Option<String>) + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("claim".to_owned());
        let (settled, is_settled) = std::sync::mpsc::sync_channel(1);
        let changed = move |state: Option<String>| {
            changed(state);
            // An error is ignored, because the caller waits only for the first state.
            let _ = settled.try_send(());
        };
        thread.spawn(move || self.run(&changed))?;
        // The thread calls `changed` within ATTEMPTS_MAX attempts, HANDOVER and two
        // CONNECT_TIMEOUT. A full queue ends the attempts.
        let _ = is_settled.recv();
        Ok(())
    }

    fn run(&self, changed: &impl Fn(Option<String>)) {
        let mut attempts = 0;
        let mut was_unanswered = false;
        loop {
            let step = self.step();
            let is_unanswered = matches!(step, Step::Unanswered);
            attempts = match step {
                Step::Again => attempts + 1,
                _ => 0,
            };
            match step {
                Step::Held(listener) => self.seat(&listener, changed),
                Step::Unlisted => {
                    self.hand_over();
                    changed(None);
                    std::thread::sleep(REBIND_PAUSE);
                }
                Step::Refused(reason, connection) => {
                    changed(Some(reason));
                    wait_for_end(connection, None);
                }
                // The daemon prints each call, so a state that lasts is passed only once.
                Step::Unanswered if !was_unanswered => {
                    changed(Some(
                        "a process that claimed the CPUs of this machine accepts no connections"
                            .to_owned(),
                    ));
                }
                Step::Again if attempts == ATTEMPTS_MAX => {
                    changed(Some(
                        "other daemons repeatedly claim the CPUs of this machine".to_owned(),
                    ));
                }
                Step::Unanswered | Step::Again => {}
            }
            was_unanswered = is_unanswered;
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    /// Allows seats until this daemon has lost the claim or handed it over.
    fn seat(&self, listener: &UnixListener, changed: &impl Fn(Option<String>)) {
        self.hand_over();
        changed(None);
        match self.hold(listener) {
            // The connection is closed when `changed` has released the seats of this daemon. Its
            // end also ends the wait of the system daemon.
            Ok(system) => changed(Some(self.reason(&system, true))),
            Err(error) => changed(Some(format!(
                "the daemon lost its claim on the CPUs of this \
                                                machine: {error}"
            ))),
        }
    }

    /// Binds this side's name, and checks the other side.
    fn step(&self) -> Step {
        let Ok(listener) = UnixListener::bind_addr(&self.own) else {
            return match connect(&self.own) {
                Ok(holder) if self.is_system && owner(&holder).is_none_or(|peer| peer.uid != 0) => {
                    Step::Unlisted
                }
                Ok(holder) => Step::Refused(self.reason(&holder, self.is_system), holder),
                Err(error) if is_unanswered(&error) && self.is_system => Step::Unlisted,
                Err(error) if is_unanswered(&error) => Step::Unanswered,
                Err(_) => Step::Again,
            };
        };
        if self.is_system {
            return Step::Held(listener);
        }
        match connect(&self.other) {
            Ok(system) if owner(&system).is_some_and(|peer| peer.uid == 0) => {
                Step::Refused(self.reason(&system, true), system)
            }
            Err(error) if is_unanswered(&error) => Step::Unanswered,
            _ => Step::Held(listener),
        }
    }

    /// Waits until a user's daemon that holds `user` has given it up.
    fn hand_over(&self) {
        if !self.is_system {
            return;
        }
        if let Ok(holder) = connect(&self.other) {
            wait_for_end(holder, Some(HANDOVER));
        }
    }

    /// Holds the claim until the system daemon takes it over, and returns the connection of the
    /// system daemon.
    fn hold(&self, listener: &UnixListener) -> io::Result<UnixStream> {
        let mut kept = Vec::new();
        loop {
            let (peer, _) = listener.accept()?;
            if !self.is_system && owner(&peer).is_some_and(|peer| peer.uid == 0) {
                return Ok(peer);
            }
            kept.retain(is_open);
            if kept.len() < KEPT_MAX {
                kept.push(peer);
            }
        }
    }

    fn reason(&self, holder: &UnixStream, is_system: bool) -> String {
        let peer = owner(holder);
        let pid = peer.and_then(|peer| peer.pid);
        let process = match pid {
            Some(pid) => format!("process {pid}"),
            None => "of another PID namespace".to_owned(),
        };
        let (other, remedy) = match (is_system, peer) {
            (true, _) => (
                format!("the system daemon ({process})"),
                "wait until that daemon ends, or start the programs again with 'usher run', which \
                 uses the system daemon",
            ),
            (false, Some(peer)) => (
                format!("the daemon of user {} ({process})", peer.uid),
                SERVICE_REMEDY,
            ),
            (false, None) => ("another daemon".to_owned(), SERVICE_REMEDY),
        };
        format!("{other} already assigns the CPUs of this machine; {remedy}")
    }
}

/// What a user can do if the daemon of another user holds the claim.
const SERVICE_REMEDY: &str = "wait until that daemon ends; an administrator can run the system \
                              service for all users: 'systemctl enable --now usher'";

/// Splits a refusal of a claim into the reason and the remedy.
pub fn reason_and_remedy(refusal: &str) -> (&str, Option<&str>) {
    match refusal.split_once("; ") {
        Some((reason, remedy)) => (reason, Some(remedy)),
        None => (refusal, None),
    }
}

/// Connects to the holder of a name, and waits for at most [`CONNECT_TIMEOUT`] for a place in its
/// queue.
fn connect(address: &SocketAddr) -> io::Result<UnixStream> {
    let name = address.as_abstract_name().unwrap_or_default();
    let address = SocketAddrUnix::new_abstract_name(name)?;
    Ok(peer::connect(&address, CONNECT_TIMEOUT)?)
}

/// Whether a connection failed because the queue of the holder stayed full.
fn is_unanswered(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// The credentials of the process at the other end.
fn owner(stream: &UnixStream) -> Option<Credentials> {
    peer::credentials(stream).ok()
}

/// Reads until the other end closes the connection, or for at most `limit`.
fn wait_for_end(mut stream: UnixStream, limit: Option<Duration>) {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut byte = [0];
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) || stream.set_read_timeout(left).is_err() {
            return;
        }
        match stream.read(&mut byte) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Whether the other end has not closed the connection.
fn is_open(stream: &UnixStream) -> bool {
    let mut byte = [0];
    let peeked = rustix::net::recv(
        stream,
        &mut byte,
        rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT,
    );
    !matches!(peeked, Ok((_, 0)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    /// A name that no other test uses.
    fn name(test: &str) -> String {
        format!("{:x}{test}", std::process::id())
    }

    fn follow(claim: &Claim) -> Receiver<Option<String>> {
        let (sender, states) = channel();
        let changed = move |state| drop(sender.send(state));
        claim.clone().follow(changed).unwrap();
        states
    }

    #[test]
    fn the_first_daemon_seats_and_the_second_abstains_until_the_first_ends() {
        let claim = Claim::of(&name("a"), false).unwrap();
        let Step::Held(first) = claim.step() else {
            panic!("the name was in use");
        };
        let second = follow(&claim);
        let refused = second.recv_timeout(DEADLINE).unwrap();
        let reason = refused.expect("the second daemon may not seat");
        let (reason, remedy) = reason_and_remedy(&reason);
        let process = format!("(process {})", std::process::id());
        assert!(reason.contains(&process), "{reason}");
        let remedy = remedy.expect("the refusal has a remedy");
        assert!(
            remedy.starts_with("wait until that daemon ends"),
            "{remedy}"
        );
        assert!(remedy.contains("systemctl enable --now usher"), "{remedy}");
        // Dropping the claim closes the socket, as the kernel does when the process dies.
        drop(first);
        let allowed = std::iter::from_fn(|| second.recv_timeout(DEADLINE).ok());
        assert!(allowed.into_iter().any(|state| state.is_none()));
    }

    #[test]
    fn of_many_daemons_that_start_at_once_one_seats() {
        let claim = Claim::of(&name("b"), false).unwrap();
        let steps: Vec<Step> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| claim.step())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let held = steps.iter().filter(|step| matches!(step, Step::Held(_)));
        assert_eq!(held.count(), 1);
    }

    #[test]
    fn a_users_listener_does_not_keep_the_system_daemon_from_seating() {
        if !rustix::process::geteuid().is_root() {
            usher_skip::skip!("only root can act as two users");
            return;
        }
        let claim = Claim::of(&name("d"), true).unwrap();
        let own = claim.own.clone();
        let bind_as_user = move || {
            // SAFETY: the raw system call changes the effective user id of this
            // thread alone, which ends right after, and touches no memory.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, 61_001, -1) };
            assert_eq!(changed, 0, "taking another effective uid");
            UnixListener::bind_addr(&own).unwrap()
        };
        let bound = std::thread::scope(|scope| scope.spawn(bind_as_user).join().unwrap());
        assert!(matches!(claim.step(), Step::Unlisted));
        drop(bound);
        // A child process that another test starts has a copy of the listener until it executes its
        // program.
        let began = std::time::Instant::now();
        while !matches!(claim.step(), Step::Held(_)) {
            assert!(began.elapsed() < DEADLINE, "the address stays in use");
            std::thread::yield_now();
        }
    }

    /// A listener that accepts no connections, and the connection that fills its queue.
    fn bind_with_full_queue(address: &SocketAddr) -> (UnixListener, UnixStream) {
        let listener = UnixListener::bind_addr(address).unwrap();
        // The kernel queues one connection more than the given number.
        rustix::net::listen(&listener, 0).unwrap();
        let queued = UnixStream::connect_addr(address).unwrap();
        (listener, queued)
    }

    /// The first state of a daemon, or an error if the start of the daemon waits longer than the
    /// deadline.
    fn first_state(claim: Claim) -> Option<String> {
        let (sender, states) = channel();
        std::thread::spawn(move || {
            let changed = move |state| drop(sender.send(state));
            claim.follow(changed).unwrap();
        });
        states
            .recv_timeout(DEADLINE)
            .expect("the daemon waits for the holder of a name")
    }

    #[test]
    fn holders_with_full_queues_do_not_keep_the_system_daemon_from_seating() {
        let claim = Claim::of(&name("e"), true).unwrap();
        let _system = bind_with_full_queue(&claim.own);
        let _user = bind_with_full_queue(&claim.other);
        assert_eq!(first_state(claim), None);
    }

    #[test]
    fn a_users_daemon_abstains_while_a_holder_accepts_no_connections() {
        for is_own in [true, false] {
            let claim = Claim::of(&name(if is_own { "f" } else { "g" }), false).unwrap();
            let address = if is_own { &claim.own } else { &claim.other };
            let _holder = bind_with_full_queue(address);
            let reason = first_state(claim).expect("the daemon may not seat");
            assert!(reason.contains("accepts no connections"), "{reason}");
        }
    }

    #[test]
    fn the_system_daemon_takes_over_from_a_users_daemon() {
        if !rustix::process::geteuid().is_root() {
            usher_skip::skip!("only root is taken for the system daemon");
            return;
        }
        let name = name("c");
        let user = follow(&Claim::of(&name, false).unwrap());
        assert_eq!(user.recv_timeout(DEADLINE).unwrap(), None);
        let system = follow(&Claim::of(&name, true).unwrap());
        assert_eq!(system.recv_timeout(DEADLINE).unwrap(), None);
        let reason = user.recv_timeout(DEADLINE).unwrap();
        assert!(reason.unwrap().contains("system daemon"));
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The daemon's socket: one thread, one poll loop, no blocking calls.
//!
//! **Problem.** A peer may send invalid data, too much data, one byte a minute, or nothing at all.
//! No peer may block the daemon, fill its memory or use up its descriptors.
//!
//! **Steps** of one iteration: wait for events; read and write as much as possible without waiting;
//! send the replies of answered calls; disconnect users that exceed their quota of bytes; start
//! complete calls on free threads; disconnect peers that exceed a time limit; accept new
//! connections.
//!
//! **Rules.**
//!
//! - No read or write waits.
//! - A connection reads no more when it has a whole message. The bytes of an incomplete message are
//!   limited.
//! - A write stops when the peer accepts no more bytes. Until the whole reply is written, nothing
//!   is read from the peer.
//! - A peer that leaves a message half sent, or a reply half read, for too long is disconnected.
//! - Each user other than root has a quota of connections and of bytes, and some connections and
//!   threads are kept for root. A request over a quota is rejected with an error that names the
//!   quota ([`super::quota`]).
//! - A connection that is idle between messages costs a descriptor and may stay: each launcher
//!   keeps a connection open while its program runs, to notice the daemon's death.
//!
//! The threads of [`super::workers`] answer the calls, because the admission of a program waits for
//! the control loop. The control loop admits all programs that wait at the same time in one
//! iteration. A connection has one call in progress at a time, so that answers keep their order.
//!
//! **Bounds** ([`Limits::default`]):
//!
//! - 4,096 connections, of which 256 are kept for root, and 256 connections per user;
//! - 16 MiB of buffers per user, and 256 KiB per message;
//! - 5 s for a half-sent message or a half-read reply;
//! - 32 threads. A call that waits for a thread, or for its method, has no time limit.
//!
//! One iteration costs time proportional to the number of connections; each reply and each new
//! connection costs another pass. If no descriptor is left, no connection is accepted for 100 ms.
//! Only an error of `poll` ends the loop.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec};
use usher_probe::ProcessFacts;
use varlink::VarlinkService;

use super::connection::Connection;
use super::listen::DaemonSocket;
use super::quota::{self, Quota};
use super::workers::Workers;
use crate::peer;

/// The process at the other end, as reported by the kernel (SO_PEERCRED).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Effective user at the time of connecting.
    pub uid: u32,
    /// Pid of the peer in the daemon's PID namespace; 0 if the peer has no pid in this namespace.
    pub pid: i32,
}

impl Peer {
    fn of(stream: &UnixStream) -> io::Result<Self> {
        let found = peer::credentials(stream)?;
        Ok(Self {
            uid: found.uid,
            pid: found.pid.unwrap_or(0),
        })
    }

    /// Returns whether the peer's pids belong to another PID namespace, outside the daemon's or
    /// nested in it.
    pub fn counts_otherwise(&self, proc_root: &Path) -> bool {
        // The check fails for a process that has exited and left its socket to another process.
        let facts = ProcessFacts::read(proc_root, self.pid).ok();
        self.pid == 0 || facts.is_some_and(|facts| facts.numbers.len() > 1)
    }
}

/// Limits of one peer, of one user or of all peers together. `docs/security.md` lists the values.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Simultaneous connections.
    pub connections: usize,
    /// Simultaneous connections of one user other than root.
    pub connections_per_user: usize,
    /// Connections out of all that are reserved for root.
    pub connections_for_root: usize,
    /// Bytes of messages and replies that are buffered for one user.
    pub bytes_per_user: usize,
    /// Bytes of one message, its final NUL included.
    pub message_bytes: usize,
    /// Upper limit of the time for which a message may stay half sent, or a reply half read.
    pub message_timeout: Duration,
    /// Calls that are answered simultaneously.
    pub workers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            connections_per_user: 256,
            connections_for_root: 256,
            bytes_per_user: 16 << 20,
            message_bytes: 256 * 1024,
            message_timeout: Duration::from_secs(5),
            workers: 32,
        }
    }
}

/// Makes the service for a peer.
pub type MakeService = Box<dyn Fn(Peer) -> VarlinkService + Send>;

/// The socket with its connections.
pub struct Server {
    listener: UnixListener,
    wake: OwnedFd,
    limits: Limits,
    make_service: MakeService,
    workers: Workers,
    connections: Vec<Connection>,
    next_token: u64,
    /// Index of the connection that may start a call first in the next iteration.
    first: usize,
    /// Until this time, no connection is accepted, because no file descriptor is left.
    full_until: Option<Instant>,
}

/// The result of a poll.
struct Ready {
    end: bool,
    knock: bool,
    /// One entry per connection.
    connections: Vec<bool>,
}

impl Server {
    /// Makes a server on that listener. It ends when `wake` becomes readable or is closed.
    ///
    /// # Errors
    /// The listener cannot be made non-blocking, or threads cannot be started.
    pub fn new(
        listener: UnixListener,
        wake: OwnedFd,
        limits: Limits,
        make_service: MakeService,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            wake,
            limits,
            make_service,
            workers: Workers::start(limits.workers)?,
            connections: Vec::new(),
            next_token: 0,
            first: 0,
            full_until: None,
        })
    }

    /// Serves until `wake` ends it.
    ///
    /// # Errors
    /// Polling fails.
    pub fn run(&mut self) -> io::Result<()> {
        while self.iterate()? {}
        Ok(())
    }

    /// Waits for an event and handles it. Returns false at the end.
    fn iterate(&mut self) -> io::Result<bool> {
        let ready = self.poll()?;
        if ready.end {
            return Ok(false);
        }
        for (connection, &ready) in self.connections.iter_mut().zip(&ready.connections) {
            if ready {
                connection.transfer(&self.limits);
            }
        }
        self.deliver();
        self.enforce_quota();
        self.begin_calls();
        for connection in &mut self.connections {
            connection.close_if_late(self.limits.message_timeout);
        }
        self.connections.retain(|connection| !connection.closed);
        if ready.knock {
            self.accept();
        }
        Ok(true)
    }

    /// Sends replies. If the caller has disconnected, its call is undone, because the caller has
    /// reported the call as failed.
    fn deliver(&mut self) {
        for mut done in self.workers.done() {
            let caller = self.connections.iter_mut().find(|c| c.token == done.token);
            let delivered = caller.is_some_and(|caller| {
                caller.answered(&mut done);
                !caller.closed
            });
            if let Some(undo) = done.undelivered.filter(|_| !delivered) {
                self.workers.undo(undo);
            }
        }
    }

    /// Disconnects users with too many buffered bytes, the newest connections first.
    fn enforce_quota(&mut self) {
        let limit = self.limits.bytes_per_user;
        let mut held: BTreeMap<u32, usize> = BTreeMap::new();
        for connection in self.connections.iter_mut().filter(|c| c.peer.uid != 0) {
            let theirs = held.entry(connection.peer.uid).or_default();
            *theirs += connection.held_bytes();
            if *theirs > limit {
                connection.refuse(&quota::refusal(Quota::Bytes, limit));
            }
        }
    }

    /// Starts the calls that are due, within each user's share of threads. Each iteration begins
    /// with another connection, so that no connection has precedence.
    fn begin_calls(&mut self) {
        let count = self.connections.len();
        let first = self.first;
        for at in (0..count).map(|n| (first + n) % count) {
            let connection = &mut self.connections[at];
            if connection.is_due()
                && self.workers.admits(connection.peer.uid)
                && let Some(call) = connection.next_call(&self.limits)
            {
                self.workers.begin(call);
                self.first = at + 1;
            }
        }
    }

    fn poll(&mut self) -> io::Result<Ready> {
        let now = Instant::now();
        self.full_until = self.full_until.filter(|&until| until > now);
        let timeout = self.timeout(now);
        let listen = match self.full_until {
            None => PollFlags::IN,
            Some(_) => PollFlags::empty(),
        };
        let mut fds = vec![
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(&self.listener, listen),
            PollFd::from_borrowed_fd(self.workers.notify_fd(), PollFlags::IN),
        ];
        // A connection with a call in progress is not polled, because a poll would return at once,
        // again and again, after the peer has hung up.
        let polled: Vec<bool> = self.connections.iter().map(|c| !c.waits()).collect();
        let connections = self.connections.iter().filter(|c| !c.waits());
        fds.extend(connections.map(Connection::poll_fd));
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut happened = fds.iter().map(|fd| !fd.revents().is_empty());
        let [end, knock, _bell] = [(); 3].map(|()| happened.next().unwrap_or(false));
        let connections = polled
            .into_iter()
            .map(|polled| polled && happened.next() == Some(true));
        Ok(Ready {
            end,
            knock,
            connections: connections.collect(),
        })
    }

    /// Returns the time until the first peer exceeds its time limit.
    fn timeout(&self, now: Instant) -> Option<Timespec> {
        let ends = self
            .connections
            .iter()
            .filter_map(Connection::delayed_since);
        let first = ends.map(|since| since + self.limits.message_timeout).min();
        let first = [first, self.full_until].into_iter().flatten().min()?;
        let left = first.saturating_duration_since(now) + Duration::from_millis(1);
        Timespec::try_from(left).ok()
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // No descriptor or memory is left. The listener would stay readable and is
                    // therefore not polled for 100 ms.
                    self.full_until = Some(Instant::now() + Duration::from_millis(100));
                    return;
                }
            }
        }
    }

    /// Accepts a connection, or closes it if there are too many.
    fn admit(&mut self, stream: UnixStream) {
        let Ok(peer) = Peer::of(&stream) else {
            return;
        };
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        self.next_token += 1;
        let service = Arc::new((self.make_service)(peer));
        let mut connection = Connection::new(self.next_token, stream, peer, service);
        match self.over_quota(peer) {
            Some((quota, limit)) => connection.refuse(&quota::refusal(quota, limit)),
            None => self.connections.push(connection),
        }
    }

    /// Returns the quota that one more connection of this peer would exceed.
    fn over_quota(&self, peer: Peer) -> Option<(Quota, usize)> {
        let limits = &self.limits;
        let all = self.connections.len();
        let theirs = self.connections.iter().filter(|c| c.peer.uid == peer.uid);
        let theirs = theirs.count();
        let for_users = limits
            .connections
            .saturating_sub(limits.connections_for_root);
        match peer.uid {
            0 if all >= limits.connections => Some((Quota::Connections, limits.connections)),
            0 => None,
            _ if theirs >= limits.connections_per_user => {
                Some((Quota::ConnectionsPerUser, limits.connections_per_user))
            }
            _ if all >= for_users => Some((Quota::Connections, for_users)),
            _ => None,
        }
    }
}

/// Starts a thread that serves until `ending` becomes readable.
///
/// # Errors
/// A descriptor cannot be copied, or a thread cannot be started.
pub fn spawn(
    listening: &DaemonSocket,
    make_service: MakeService,
    ending: &Arc<OwnedFd>,
) -> anyhow::Result<JoinHandle<io::Result<()>>> {
    let wake = ending.try_clone().context("copying a descriptor")?;
    let listener = listening.listener().context("copying a descriptor")?;
    let server = Server::new(listener, wake, Limits::default(), make_service);
    let mut server = server.context("serving the socket")?;
    std::thread::Builder::new()
        .name("socket".to_owned())
        .spawn(move || server.run())
        .context("starting a thread")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, Read, Write};
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    use proptest::prelude::*;
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    const GET_INFO: &[u8] = b"{\"method\":\"org.varlink.service.GetInfo\"}\0";

    /// A running server, which ends when the fixture is dropped.
    struct Fixture {
        path: PathBuf,
        wake: OwnedFd,
        thread: Option<std::thread::JoinHandle<io::Result<()>>>,
        _dir: tempfile::TempDir,
    }

    impl Fixture {
        fn start(limits: Limits) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            let wake = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            let make = |_| VarlinkService::new("v", "p", "1", "u", Vec::new());
            let end = wake.try_clone().unwrap();
            let mut server = Server::new(listener, end, limits, Box::new(make)).unwrap();
            let thread = Some(std::thread::spawn(move || server.run()));
            Self {
                path,
                wake,
                thread,
                _dir: dir,
            }
        }

        fn connect(&self) -> UnixStream {
            let stream = UnixStream::connect(&self.path).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            stream
        }

        fn answers(&self) {
            let mut peer = self.connect();
            peer.write_all(GET_INFO).unwrap();
            assert!(reply(&peer).contains("\"vendor\":\"v\""));
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            rustix::io::write(&self.wake, &1u64.to_ne_bytes()).unwrap();
            let ended = self.thread.take().map(|thread| thread.join().unwrap());
            assert!(matches!(ended, Some(Ok(()))));
        }
    }

    fn reply(stream: &UnixStream) -> String {
        let mut bytes = Vec::new();
        let mut reader = io::BufReader::new(stream);
        reader.read_until(0, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// Returns whether the server closes the connection of this peer, in any way.
    fn hung_up(stream: &mut UnixStream) -> bool {
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(e) => e.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    #[test]
    fn answers_many_messages_at_once_in_order() {
        let server = Fixture::start(Limits::default());
        let mut peer = server.connect();
        peer.write_all(&GET_INFO.repeat(100)).unwrap();
        let mut reader = io::BufReader::new(&peer);
        for _ in 0..100 {
            let mut bytes = Vec::new();
            reader.read_until(0, &mut bytes).unwrap();
            assert!(bytes.ends_with(b"}\0"));
        }
    }

    #[test]
    fn a_oneway_call_gets_no_answer() {
        let server = Fixture::start(Limits::default());
        let mut peer = server.connect();
        peer.write_all(b"{\"method\":\"no.such.Method\",\"oneway\":true}\0")
            .unwrap();
        peer.write_all(GET_INFO).unwrap();
        assert!(reply(&peer).contains("vendor"));
    }

    #[test]
    fn disconnects_a_peer_that_sends_too_much_and_serves_others() {
        let server = Fixture::start(Limits {
            message_bytes: 10_000,
            ..Limits::default()
        });
        let mut greedy = server.connect();
        let _ = greedy.write_all(&[b'x'; 1 << 20]);
        assert!(hung_up(&mut greedy));
        server.answers();
    }

    #[test]
    fn a_message_is_accepted_up_to_its_limit_and_refused_above() {
        let message_bytes = 1000;
        let server = Fixture::start(Limits {
            message_bytes,
            ..Limits::default()
        });
        // Blanks after the JSON value belong to the message.
        let of_length = |bytes: usize| {
            let (value, end) = GET_INFO.split_at(GET_INFO.len() - 1);
            let blanks = vec![b' '; bytes - GET_INFO.len()];
            [value, blanks.as_slice(), end].concat()
        };
        let mut peer = server.connect();
        peer.write_all(&of_length(message_bytes)).unwrap();
        assert!(reply(&peer).contains("vendor"));
        peer.write_all(&of_length(message_bytes + 1)).unwrap();
        let refusal = reply(&peer);
        assert!(refusal.contains("QuotaExceeded"), "{refusal}");
        assert!(hung_up(&mut peer));
    }

    #[test]
    fn disconnects_a_peer_that_never_finishes_and_serves_others() {
        let message_timeout = Duration::from_millis(50);
        let server = Fixture::start(Limits {
            message_timeout,
            ..Limits::default()
        });
        let mut idle = server.connect();
        let mut slow = server.connect();
        slow.write_all(b"{\"meth").unwrap();
        assert!(hung_up(&mut slow));
        server.answers();
        // A connection may stay idle between messages without a time limit.
        idle.write_all(GET_INFO).unwrap();
        assert!(reply(&idle).contains("vendor"));
    }

    #[test]
    fn disconnects_a_peer_that_does_not_read() {
        let message_timeout = Duration::from_millis(50);
        let server = Fixture::start(Limits {
            message_timeout,
            ..Limits::default()
        });
        let mut deaf = server.connect();
        deaf.set_write_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let pushed = (0..100_000).try_for_each(|_| deaf.write_all(GET_INFO));
        let kind = pushed.unwrap_err().kind();
        let gone = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
        assert!(gone.contains(&kind), "{kind}");
        server.answers();
    }

    #[test]
    fn limits_the_number_of_connections() {
        let server = Fixture::start(Limits {
            connections: 2,
            ..Limits::default()
        });
        let held = [server.connect(), server.connect()];
        for peer in &held {
            (&*peer).write_all(GET_INFO).unwrap();
            assert!(reply(peer).contains("vendor"));
        }
        assert!(hung_up(&mut server.connect()));
        drop(held);
        // The server frees the connections of the quota when it notices their end; the test polls
        // until then.
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let mut peer = server.connect();
            let is_sent = peer.write_all(GET_INFO).is_ok();
            let mut byte = [0];
            if is_sent && matches!(peer.read(&mut byte), Ok(1)) {
                break;
            }
            assert!(Instant::now() < deadline, "no place became free");
        }
    }

    #[test]
    fn leaves_no_descriptor_behind() {
        let server = Fixture::start(Limits::default());
        server.answers();
        let probe = server.connect();
        let highest = probe.as_raw_fd();
        for _ in 0..500 {
            let mut peer = server.connect();
            let _ = peer.write_all(b"nonsense\0");
            assert!(hung_up(&mut peer));
        }
        server.answers();
        assert!(server.connect().as_raw_fd() < highest + 100);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_server_survives_any_input(pieces in proptest::collection::vec(piece(), 1..20), cut in 0usize..200) {
            let server = Fixture::start(Limits::default());
            let mut peer = server.connect();
            let mut bytes: Vec<u8> = pieces.concat();
            bytes.truncate(bytes.len().saturating_sub(cut));
            for chunk in bytes.chunks(97) {
                if peer.write_all(chunk).is_err() {
                    break;
                }
            }
            server.answers();
        }
    }

    /// Messages, halves of messages, and random bytes.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let request = "[a-zA-Z.]{0,30}".prop_map(|method| {
            format!("{{\"method\":\"{method}\",\"parameters\":{{\"a\":[[[1e999]]]}}}}\0")
                .into_bytes()
        });
        prop_oneof![
            Just(GET_INFO.to_vec()),
            Just(b"\0".to_vec()),
            Just(vec![b'['; 5000]),
            request,
            proptest::collection::vec(any::<u8>(), 0..500),
        ]
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The loop of `usher top`: waits for keys, signals and states of the daemon.

use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use usher_model::Topology;

use super::draw::draw;
use super::keys;
use super::terminal::{self, Screen};
use super::view::{Reaction, View};
use crate::api::State;
use crate::client::Daemon;
use crate::output::Output;

/// A state of the daemon, or the error with which the requests ended.
type StateResult = anyhow::Result<State>;

/// Time for which the view waits for the next daemon after the end of a daemon. The keeper starts
/// the next daemon within a second.
const NEXT_DAEMON: Duration = Duration::from_secs(3);
/// Pause between two attempts to find the next daemon.
const PAUSE: Duration = Duration::from_millis(50);

/// Flags of the signals that have arrived since the loop handled them last.
struct Signals {
    ends: Arc<AtomicBool>,
    stops: Arc<AtomicBool>,
    redraws: Arc<AtomicBool>,
}

impl Signals {
    /// Catches the signals. Each signal also makes the other end of `wake` readable.
    fn catch(wake: &UnixStream) -> io::Result<Self> {
        let signals = Self {
            ends: Arc::default(),
            stops: Arc::default(),
            redraws: Arc::default(),
        };
        for (flag, numbers) in [
            (&signals.ends, &[SIGINT, SIGTERM, SIGHUP, SIGQUIT][..]),
            (&signals.stops, &[SIGTSTP]),
            (&signals.redraws, &[SIGWINCH, SIGCONT]),
        ] {
            for &number in numbers {
                signal_hook::flag::register(number, flag.clone())?;
                signal_hook::low_level::pipe::register(number, wake.try_clone()?)?;
            }
        }
        Ok(signals)
    }
}

/// Shows the view until a key or a signal ends it.
///
/// # Errors
/// The daemon does not answer, or the terminal cannot be used.
pub fn run(
    mut daemon: Daemon,
    runtime_dir: Option<PathBuf>,
    topology: &Topology,
    interval: f64,
    out: Output,
) -> anyhow::Result<()> {
    let (wake, waker) = UnixStream::pair().context("making a socket pair")?;
    for end in [&wake, &waker] {
        end.set_nonblocking(true)
            .context("configuring a socket pair")?;
    }
    let signals = Signals::catch(&waker).context("catching signals")?;
    let mut view = View::new(daemon.status()?);
    let (refresh, states) = request_states(daemon, runtime_dir, interval, waker)?;
    terminal::restore_on_panic();
    let mut screen = Screen::enter(out.color)?;
    loop {
        screen.draw(draw(&view, topology, terminal::area()))?;
        let mut suspends = false;
        for key in wait(&wake)? {
            match view.key(key) {
                Reaction::Draw => {}
                Reaction::Refresh => drop(refresh.send(())),
                Reaction::Quit => return Ok(()),
                Reaction::Suspend => suspends = true,
            }
        }
        if signals.ends.load(Ordering::Relaxed) {
            return Ok(());
        }
        if suspends || signals.stops.swap(false, Ordering::Relaxed) {
            drop(screen);
            // This process continues here after SIGCONT.
            signal_hook::low_level::emulate_default_handler(SIGTSTP)
                .context("stopping this process")?;
            screen = Screen::enter(out.color)?;
        }
        if signals.redraws.swap(false, Ordering::Relaxed) {
            screen.invalidate();
        }
        while let Ok(state) = states.try_recv() {
            view.update(state?);
        }
    }
}

/// Starts the thread that requests the daemon's state at each interval, and at once after a message
/// on the returned channel. After each state, the thread makes the other end of `waker` readable.
fn request_states(
    mut daemon: Daemon,
    runtime_dir: Option<PathBuf>,
    interval: f64,
    waker: UnixStream,
) -> anyhow::Result<(Sender<()>, Receiver<StateResult>)> {
    let (refresh, refreshes) = mpsc::channel();
    let (sender, states) = mpsc::channel();
    let interval = Duration::from_secs_f64(interval);
    let body = move || {
        while refreshes.recv_timeout(interval) != Err(RecvTimeoutError::Disconnected) {
            let state = next_state(&mut daemon, runtime_dir.as_deref());
            let failed = state.is_err();
            let sent = sender.send(state).is_ok();
            // If the socket is full, the main thread will be woken anyway.
            let _ = rustix::io::write(&waker, b"s");
            if failed || !sent {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("states".to_owned())
        .spawn(body)
        .context("starting a thread")?;
    Ok((refresh, states))
}

/// Returns the daemon's state. If the daemon has ended, waits up to [`NEXT_DAEMON`] for the next
/// daemon, which the keeper starts.
fn next_state(daemon: &mut Daemon, runtime_dir: Option<&Path>) -> StateResult {
    let state = daemon.status();
    if state.is_ok() || !daemon.is_gone() {
        return state;
    }
    let ended = Instant::now();
    while ended.elapsed() < NEXT_DAEMON {
        std::thread::sleep(PAUSE);
        if let Some(next) = Daemon::find(runtime_dir) {
            *daemon = next;
            return daemon.status();
        }
    }
    state
}

/// Waits until a key is pressed, or the other end of `wake` was written. Returns the keys.
fn wait(mut wake: &UnixStream) -> anyhow::Result<Vec<keys::Key>> {
    let stdin = io::stdin();
    let reads_keys = stdin.is_terminal();
    let mut polled = vec![PollFd::new(&wake, PollFlags::IN)];
    if reads_keys {
        polled.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
    }
    match poll(&mut polled, None) {
        // A signal has arrived, and its flag is set.
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error).context("waiting for keys"),
    }
    let has_keys = polled.get(1).is_some_and(|one| !one.revents().is_empty());
    drop(polled);
    let mut drained = [0; 256];
    while matches!(wake.read(&mut drained), Ok(1..)) {}
    if !has_keys {
        return Ok(Vec::new());
    }
    let mut bytes = [0; 256];
    match rustix::io::read(&stdin, &mut bytes) {
        // The terminal has hung up.
        Ok(0) | Err(rustix::io::Errno::IO) => Ok(vec![keys::Key::Control('c')]),
        Ok(count) => Ok(keys::parse(&bytes[..count])),
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(Vec::new()),
        Err(error) => Err(error).context("reading keys"),
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The loop of `usher top`: waits for keys, signals and states of the daemons.

use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
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
use crate::client::{DaemonError, Daemons};
use crate::output::Output;

/// A message of the thread that requests the states.
enum Update {
    /// The states of the daemons.
    States(Vec<State>),
    /// The last daemon has ended; the thread waits for the next daemon.
    Waiting,
    /// The requests have ended.
    Failed(anyhow::Error),
}

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
/// A daemon does not answer, or the terminal cannot be used.
pub fn run(
    daemons: Daemons,
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
    let mut view = View::new(states_of(&daemons));
    let (refresh, updates) = request_states(daemons, interval, waker)?;
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
        while let Ok(update) = updates.try_recv() {
            match update {
                Update::States(states) => view.update(states),
                Update::Waiting => {
                    view.is_waiting = true;
                    screen.draw(draw(&view, topology, terminal::area()))?;
                }
                Update::Failed(error) => return Err(error),
            }
        }
    }
}

/// Starts the thread that requests the states of the daemons at each interval, and at once after a
/// message on the returned channel. After each request, the thread makes the other end of `waker`
/// readable.
fn request_states(
    mut daemons: Daemons,
    interval: f64,
    waker: UnixStream,
) -> anyhow::Result<(Sender<()>, Receiver<Update>)> {
    let (refresh, refreshes) = mpsc::channel();
    let (sender, updates) = mpsc::channel();
    let interval = Duration::from_secs_f64(interval);
    let send = move |update| {
        let sent = sender.send(update).is_ok();
        // If the socket is full, the main thread will be woken anyway.
        let _ = rustix::io::write(&waker, b"s");
        sent
    };
    let body = move || {
        while refreshes.recv_timeout(interval) != Err(RecvTimeoutError::Disconnected) {
            let sent = match next_states(&mut daemons, &send) {
                Ok(states) => send(Update::States(states)),
                Err(error) => {
                    send(Update::Failed(error));
                    return;
                }
            };
            if !sent {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("states".to_owned())
        .spawn(body)
        .context("starting a thread")?;
    Ok((refresh, updates))
}

/// Returns the states of the daemons. If the last daemon has ended, reports this once by `send`, and
/// waits up to [`NEXT_DAEMON`] for the next daemon, which the keeper starts.
fn next_states(
    daemons: &mut Daemons,
    send: &impl Fn(Update) -> bool,
) -> anyhow::Result<Vec<State>> {
    let mut started = None;
    loop {
        let error = match daemons.refresh() {
            Ok(()) => match daemons.errors.pop() {
                Some(error) => return Err(error),
                None => return Ok(states_of(daemons)),
            },
            Err(error) if DaemonError::is_lasting(&error) => return Err(error),
            Err(error) => error,
        };
        let since = *started.get_or_insert_with(|| {
            send(Update::Waiting);
            Instant::now()
        });
        if since.elapsed() >= NEXT_DAEMON {
            let limit = NEXT_DAEMON.as_secs();
            let ended =
                format!("the daemon has ended, and no other daemon started within {limit} s");
            return Err(error.context(ended));
        }
        std::thread::sleep(PAUSE);
    }
}

fn states_of(daemons: &Daemons) -> Vec<State> {
    let answered = daemons.answered.iter();
    answered.map(|one| one.state.clone()).collect()
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

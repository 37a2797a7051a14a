//! `/metrics`: what tenants use, as Prometheus reads it (the text of OpenMetrics, which it asks for and understands).
//!
//! Names of the GPU's own figures are DCGM's, so that what people have for those goes on working; tenants' are ours, in base
//! units. Whoever can reach the socket sees tenants' names and what they use: everybody on this machine, if it is a port of
//! 127.0.0.1. Who comes can neither stop the daemon nor hold it up: [`MOST`] are answered at once, each for [`BOUND`] at most; while
//! pages are being made for all of them, others are sent away.

mod text;

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::fs::Mode;
use sandbox::Writable;
use serde::Deserialize;

pub(crate) use text::render;

/// Most connections at once: the oldest makes room for another, unless its page is just being made.
const MOST: usize = 8;
/// Longest that a connection may take in all.
const BOUND: Duration = Duration::from_secs(5);
/// Longest request: a line, and headers that nobody looks at.
const MOST_REQUEST: usize = 8 << 10;
const MOST_HEADERS: usize = 64;

/// Where it is listened: `127.0.0.1:9400`, `[::1]:9400`, or the path of a unix socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if text.starts_with('/') {
            return Ok(Listen::Unix(text.into()));
        }
        let address = text.parse().map(Listen::Tcp);
        address.map_err(|_| {
            format!("`{text}` is neither an address with a port, as 127.0.0.1:9400, nor a path, as /run/metrics.sock")
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => path.display().fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Listen, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Listen {
    /// What its socket needs of the sandbox.
    pub(crate) fn writable(&self) -> Option<Writable<'_>> {
        match self {
            Listen::Tcp(address) => Some(Writable::Port(address.port())),
            Listen::Unix(path) => path.parent().map(Writable::Sockets),
        }
    }

    /// Opens it. A unix socket is its user's alone; one that somebody left is replaced.
    pub(crate) fn open(self) -> Result<Listener> {
        let socket = match &self {
            Listen::Tcp(address) => TcpListener::bind(address).map(Socket::Tcp),
            Listen::Unix(path) => listen_at(path).map(Socket::Unix),
        };
        let socket = socket.with_context(|| format!("cannot listen for metrics at {self}"))?;
        if let Socket::Tcp(listener) = &socket {
            // Another, if it was 0.
            tracing::info!(address = %listener.local_addr()?, "metrics");
        }
        Ok(Listener { socket })
    }
}

fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    // There are no other threads yet that could make files.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    listener
}

/// An open socket.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
}

impl Listener {
    /// Whether anybody on this machine may come, or from elsewhere.
    pub(crate) fn is_public(&self) -> bool {
        matches!(self.socket, Socket::Tcp(_))
    }
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn accept(&self) -> io::Result<TcpStream> {
        Ok(match &self.socket {
            Socket::Tcp(listener) => listener.accept()?.0,
            // What is asked of it is the same for all stream sockets.
            Socket::Unix(listener) => TcpStream::from(OwnedFd::from(listener.accept()?.0)),
        })
    }

    /// Answers for ever, each on a thread of its own; `page` makes what is asked for.
    pub(crate) fn serve(&self, page: impl Fn() -> Result<String> + Send + Sync + 'static) {
        let (page, present) = (Arc::new(page), Arc::new(Mutex::new(VecDeque::<Present>::new())));
        loop {
            let stream = match self.accept() {
                Ok(stream) => Arc::new(stream),
                Err(error) => {
                    tracing::debug!(%error, "metrics");
                    std::thread::sleep(BOUND / 50);
                    continue;
                }
            };
            {
                let mut present = present.lock();
                if present.len() >= MOST {
                    let Some(oldest) = present.iter().position(|one| !one.in_the_making) else { continue };
                    if let Some(oldest) = present.remove(oldest) {
                        // Its thread sees the end, whatever this says.
                        let _ = oldest.stream.shutdown(Shutdown::Both);
                    }
                }
                present.push_back(Present { stream: Arc::clone(&stream), in_the_making: false });
            }
            let (page, others) = (Arc::clone(&page), Arc::clone(&present));
            let work = move || {
                let is_this = |one: &Present| Arc::ptr_eq(&one.stream, &stream);
                // Whoever has been sent away since has no place any more, and gets no page.
                let making =
                    |is: bool| others.lock().iter_mut().find(|one| is_this(one)).map(|one| one.in_the_making = is);
                let page = || {
                    making(true).context("sent away")?;
                    let page = page();
                    // Who does not read it makes room again.
                    making(false);
                    page
                };
                if let Err(error) = answer(&stream, &page) {
                    tracing::debug!("metrics: {error:#}");
                }
                others.lock().retain(|one| !is_this(one));
            };
            if std::thread::Builder::new().name("metrics".into()).spawn(work).is_err() {
                // Without a thread, the connection and its place go.
                present.lock().pop_back();
            }
        }
    }
}

/// A connection that has a place, and so a thread.
struct Present {
    stream: Arc<TcpStream>,
    in_the_making: bool,
}

/// What a request is answered.
enum Answer {
    Page,
    Refused(&'static str),
}

/// Reads one request and answers it.
fn answer(mut stream: &TcpStream, page: &dyn Fn() -> Result<String>) -> Result<()> {
    let until = Instant::now() + BOUND;
    let (status, body) = match read(stream, until)? {
        Answer::Page => match page() {
            Ok(body) => ("200 OK", body),
            Err(error) => ("503 Service Unavailable", format!("{error:#}\n")),
        },
        Answer::Refused(status) => (status, format!("{status}\n")),
    };
    let kind = if status == "200 OK" { text::CONTENT_TYPE } else { "text/plain; charset=utf-8" };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let whole = [head.as_bytes(), body.as_bytes()].concat();
    let mut rest = &whole[..];
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        let written = stream.write(rest)?;
        rest = &rest[written..];
    }
    stream.shutdown(Shutdown::Write)?;
    // What it still says is taken, or else it may not get to read the answer.
    let mut said = [0; 1024];
    for _ in 0..MOST_REQUEST / said.len() {
        stream.set_read_timeout(Some(left(until)?))?;
        if stream.read(&mut said)? == 0 {
            break;
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn read(mut stream: &TcpStream, until: Instant) -> Result<Answer> {
    let mut said = vec![0; MOST_REQUEST];
    let mut length = 0;
    loop {
        if length == said.len() {
            return Ok(Answer::Refused("431 Request Header Fields Too Large"));
        }
        stream.set_read_timeout(Some(left(until)?))?;
        let read = stream.read(&mut said[length..])?;
        anyhow::ensure!(read > 0, "it left");
        length += read;
        if let Some(answer) = parse(&said[..length]) {
            return Ok(answer);
        }
    }
}

/// What a request is answered; `None` if it goes on.
fn parse(said: &[u8]) -> Option<Answer> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(said) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Some(Answer::Refused("431 Request Header Fields Too Large")),
        Err(_) => return Some(Answer::Refused("400 Bad Request")),
    }
    let path = request.path.unwrap_or_default();
    Some(match (request.method, path.split('?').next()) {
        (Some("GET"), Some("/metrics")) => Answer::Page,
        (Some("GET"), _) => Answer::Refused("404 Not Found"),
        _ => Answer::Refused("405 Method Not Allowed"),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A server that answers with `page`, and where.
    fn server(page: &'static str) -> SocketAddr {
        let listener = "127.0.0.1:0".parse::<Listen>().unwrap().open().unwrap();
        let Socket::Tcp(socket) = &listener.socket else { panic!() };
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || listener.serve(move || Ok(page.to_owned())));
        address
    }

    fn ask(address: SocketAddr, text: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(text).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn requests_are_answered_and_what_is_none_is_refused() {
        let address = server("sundial_up 1\n# EOF\n");
        let got = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n");
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.ends_with("\r\n\r\nsundial_up 1\n# EOF\n"), "{got}");
        let long = [b"GET /metrics HTTP/1.1\r\nX: ", &[b'a'; MOST_REQUEST][..]].concat();
        for (text, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"\x16\x03\x01\r\n\r\n", "400"),
            (&long[..], "431"),
        ] {
            let got = ask(address, text);
            assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{got}");
        }
    }

    #[test]
    fn who_says_nothing_keeps_nobody_out() {
        let address = server("page");
        let silent: Vec<TcpStream> = (0..4 * MOST).map(|_| TcpStream::connect(address).unwrap()).collect();
        for mut slow in &silent {
            // Some of them have been sent away.
            let _ = slow.write_all(b"GET /met");
        }
        assert!(ask(address, b"GET /metrics HTTP/1.0\r\n\r\n").ends_with("page"));
    }

    #[test]
    fn who_does_not_read_keeps_nobody_out() {
        // More than sockets take in.
        let page: &'static str = Box::leak("x".repeat(16 << 20).into_boxed_str());
        let address = server(page);
        let ask = || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
            // Its page has been made: the answer begins.
            stream.read_exact(&mut [0; 8]).unwrap();
            stream
        };
        let _slow: Vec<TcpStream> = (0..MOST).map(|_| ask()).collect();
        assert!(self::ask(address, b"GET /metrics HTTP/1.0\r\n\r\n").ends_with("xx"));
    }

    #[test]
    fn there_are_never_more_pages_made_than_places() {
        let listener = "127.0.0.1:0".parse::<Listen>().unwrap().open().unwrap();
        let Socket::Tcp(socket) = &listener.socket else { panic!() };
        let address = socket.local_addr().unwrap();
        let (begun, made) = std::sync::mpsc::channel();
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        std::thread::spawn(move || {
            listener.serve(move || {
                begun.send(()).unwrap();
                gate.lock().recv().unwrap();
                Ok("page".into())
            });
        });
        let ask = || {
            let mut stream = TcpStream::connect(address).unwrap();
            // Who is sent away may not get to say it.
            let _ = stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n");
            stream
        };
        let mut served: Vec<TcpStream> = (0..MOST)
            .map(|_| {
                let stream = ask();
                made.recv().unwrap();
                stream
            })
            .collect();
        for _ in 0..3 * MOST {
            assert!(!matches!(ask().read(&mut [0; 16]), Ok(1..)), "no answer while all places wait for theirs");
        }
        assert!(made.try_recv().is_err());
        (0..MOST).for_each(|_| go.send(()).unwrap());
        for stream in &mut served {
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert!(text.ends_with("page"), "who had asked is not sent away: {text}");
        }
    }

    #[test]
    fn a_unix_socket_is_its_users_and_one_that_was_left_is_replaced() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("sundial-metrics-{}.sock", std::process::id()));
        for _ in 0..2 {
            let listener = path.to_str().unwrap().parse::<Listen>().unwrap().open().unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let again = Listen::Unix(path.clone()).open();
            assert!(again.is_err(), "somebody is there");
            drop(listener);
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a file").unwrap();
        assert!(Listen::Unix(path.clone()).open().is_err(), "what is no socket stays");
        std::fs::remove_file(&path).unwrap();
        for bad in ["9400", "localhost", "metrics.sock", "127.0.0.1"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_said_is_read(said in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let _ = parse(&said);
        }
    }
}

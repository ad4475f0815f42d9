//! Keys of the program itself: addresses, directories, logs. Core's keys are in core's own table.

use super::{LogFormat, Program};

/// One key of the program.
#[derive(Copy, Clone, Debug)]
pub struct ProgramKey {
    /// Dotted name.
    pub name: &'static str,
    /// As text; empty: not set.
    pub default: &'static str,
    /// What values are allowed.
    pub bounds: &'static str,
    /// What it does, in a sentence or two.
    pub doc: &'static str,
    /// Takes a value; the error says what would be right.
    pub set: fn(&mut Program, &str) -> Result<(), String>,
}

/// All of them, by name.
pub const PROGRAM_KEYS: &[ProgramKey] = &[
    ProgramKey {
        name: "data",
        default: "./rangeway-data",
        bounds: "directories, separated by commas",
        doc: "Data directories, one per disk. The first also holds control state. Flag: --data, once per directory.",
        set: |program, value| {
            let all: Vec<_> =
                value.split(',').map(str::trim).filter(|d| !d.is_empty()).map(Into::into).collect();
            if all.is_empty() {
                return Err("name at least one directory".to_owned());
            }
            program.data = all;
            Ok(())
        },
    },
    ProgramKey {
        name: "http.bind",
        default: "127.0.0.1:9180",
        bounds: "HOST:PORT; port 0: a free one",
        doc: "Where administration, metrics and health are served. Flag: --http.",
        set: |program, value| {
            program.http = host_port(value).map(|_| value.to_owned())?;
            Ok(())
        },
    },
    ProgramKey {
        name: "http.insecure",
        default: "false",
        bounds: "true or false",
        doc: "Allow http.bind to be reachable from other machines. Whoever reaches it may administer the node. \
              Flag: --http-insecure.",
        set: |program, value| {
            program.http_insecure = switch(value)?;
            Ok(())
        },
    },
    ProgramKey {
        name: "kafka.advertised",
        default: "",
        bounds: "HOST:PORT",
        doc: "Where Kafka clients are told to connect. Not set: the address by which the client reached the node. \
              Flag: --advertise.",
        set: |program, value| {
            let (host, port) = host_port(value)?;
            if port == 0 {
                return Err("clients cannot connect to port 0".to_owned());
            }
            let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
            if address.is_ok_and(|address| address.is_unspecified()) {
                return Err(format!(
                    "clients cannot connect to {host}: name a host or an address of this machine"
                ));
            }
            program.advertised = Some((host, port));
            Ok(())
        },
    },
    ProgramKey {
        name: "kafka.bind",
        default: "127.0.0.1:9092",
        bounds: "HOST:PORT; port 0: a free one",
        doc: "Where Kafka clients are served. Flag: --kafka.",
        set: |program, value| {
            program.kafka = host_port(value).map(|_| value.to_owned())?;
            Ok(())
        },
    },
    ProgramKey {
        name: "log.filter",
        default: "info",
        bounds: "a level, or target=level pairs separated by commas",
        doc: "What is logged to standard error. RUST_LOG is read when neither this nor --log is given.",
        set: |program, value| {
            tracing_subscriber::EnvFilter::try_new(value)
                .map_err(|e| format!("{e}; levels are error, warn, info, debug, trace, off"))?;
            program.log_filter = Some(value.to_owned());
            Ok(())
        },
    },
    ProgramKey {
        name: "log.format",
        default: "text",
        bounds: "text or json",
        doc: "How log lines look. Flag: --log-format.",
        set: |program, value| {
            program.log_format = match value {
                "text" => LogFormat::Text,
                "json" => LogFormat::Json,
                _ => return Err("it is text or json".to_owned()),
            };
            Ok(())
        },
    },
    ProgramKey {
        name: "node.id",
        default: "1",
        bounds: "0 to 2147483647",
        doc: "Number of this node, as clients see it. Written into the data directories at the first start; another \
              number is refused later. Flag: --node-id.",
        set: |program, value| {
            program.node_id = match value.parse::<i32>() {
                Ok(id) if id >= 0 => id,
                _ => return Err("it is a number from 0 to 2147483647".to_owned()),
            };
            Ok(())
        },
    },
    ProgramKey {
        name: "node.rack",
        default: "",
        bounds: "any text",
        doc: "Rack or zone of this node, told to clients. Flag: --rack.",
        set: |program, value| {
            program.rack = (!value.is_empty()).then(|| value.to_owned());
            Ok(())
        },
    },
];

/// Splits `HOST:PORT`; an IPv6 host stands in brackets.
pub fn host_port(value: &str) -> Result<(String, u16), String> {
    let wrong = || format!("'{value}' is not HOST:PORT, as in 127.0.0.1:9092 or [::1]:9092");
    let (host, port) = value.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let bare = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or_else(wrong)?,
        None if host.contains(':') => return Err(wrong()),
        None => host,
    };
    if bare.is_empty() || bare.contains(char::is_whitespace) || bare.contains('/') {
        return Err(wrong());
    }
    Ok((bare.to_owned(), port))
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("it is true or false".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_split_at_the_last_colon() {
        assert_eq!(host_port("a.b:1"), Ok(("a.b".to_owned(), 1)));
        assert_eq!(host_port("[::1]:9092"), Ok(("::1".to_owned(), 9092)));
        for wrong in
            ["9092", ":9092", "host", "host:", "host:99999", "::1:9092", "[::1:1", "http://a:1", "a b:1"]
        {
            assert!(host_port(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_default_is_a_value_that_the_key_takes() {
        for key in PROGRAM_KEYS.iter().filter(|key| !key.default.is_empty()) {
            assert_eq!((key.set)(&mut Program::default(), key.default), Ok(()), "{}", key.name);
        }
    }

    #[test]
    fn defaults_in_the_table_are_the_defaults_of_the_program() {
        let mut from_table = Program::default();
        for key in PROGRAM_KEYS.iter().filter(|key| !key.default.is_empty() && key.name != "log.filter") {
            (key.set)(&mut from_table, key.default).expect("a default");
        }
        assert_eq!(from_table, Program::default());
    }

    #[test]
    fn keys_are_in_order() {
        assert!(PROGRAM_KEYS.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}

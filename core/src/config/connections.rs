//! Settings of how many connections an address may have, and how fast connections may come. They are kept by the gateway.

use super::ConfigError;
use super::dynamic::{self, DynamicConfigs};
use super::node::NodeConfig;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// Most connections of some addresses: `ADDRESS:COUNT`, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(BTreeMap<IpAddr, u32>);

impl Overrides {
    /// Reads a list; it may be empty. Of an address that is named twice the later count holds.
    ///
    /// Errors: what is none of them.
    pub fn of(text: &str) -> Result<Overrides, String> {
        let one = |item: &str| {
            let wrong = || {
                format!(
                    "'{item}' is no ADDRESS:COUNT, such as 10.0.0.7:100; names of hosts are not looked up"
                )
            };
            let (address, count) = item.rsplit_once(':').ok_or_else(wrong)?;
            let address: IpAddr = address.trim().trim_matches(['[', ']']).parse().map_err(|_| wrong())?;
            let count = count.trim().parse::<i32>().ok().and_then(|n| u32::try_from(n).ok());
            Ok((address.to_canonical(), count.ok_or_else(wrong)?))
        };
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        items.map(one).collect::<Result<_, _>>().map(Overrides)
    }
}

impl fmt::Display for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.0.iter().map(|(address, count)| format!("{address}:{count}")).collect();
        f.write_str(&shown.join(","))
    }
}

/// How connections are bounded beside their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    per_ip: u32,
    overrides: Overrides,
    /// Connections that are let in within a second.
    pub rate: u32,
}

impl ConnectionLimits {
    /// What holds: what was set while the node ran, over what was said at the start.
    pub fn of(config: &NodeConfig, dynamic: &DynamicConfigs) -> ConnectionLimits {
        // Values that were taken can be read.
        let set = |name: &str| dynamic.get(name).map(|(value, _)| value.trim());
        let number = |name, start| set(name).and_then(|value| value.parse().ok()).unwrap_or(start);
        let overrides = set(dynamic::CONNECTIONS_OVERRIDES).and_then(|value| Overrides::of(value).ok());
        ConnectionLimits {
            per_ip: number(dynamic::CONNECTIONS_PER_IP, config.connections_per_ip_max),
            overrides: overrides.unwrap_or_else(|| config.connections_per_ip_overrides.clone()),
            rate: number(dynamic::CONNECTIONS_RATE, config.connections_rate_max),
        }
    }

    /// Most connections of an address at once.
    pub fn of_address(&self, address: IpAddr) -> u32 {
        self.overrides.0.get(&address.to_canonical()).copied().unwrap_or(self.per_ip)
    }

    /// Errors: nobody could connect.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.per_ip == 0 && self.overrides.0.is_empty() {
            let why =
                "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides is set";
            return Err(ConfigError::Conflict(why.to_owned()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn overrides_are_read_as_kafka_writes_them() {
        let read = Overrides::of(" 10.0.0.7:100 ,::1:5,[fe80::1]:0, 10.0.0.7:7,").expect("read");
        assert_eq!(read.to_string(), "10.0.0.7:7,::1:5,fe80::1:0");
        assert_eq!(Overrides::of(&read.to_string()), Ok(read));
        assert_eq!(Overrides::of(""), Ok(Overrides::default()));
        for wrong in
            ["10.0.0.7", "host:5", "10.0.0.7:", "10.0.0.7:-1", "10.0.0.7:x", ":5", "10.0.0.7:2147483648"]
        {
            let why = Overrides::of(wrong).expect_err(wrong);
            assert!(why.contains("is no ADDRESS:COUNT"), "{why}");
        }
    }

    #[test]
    fn an_override_wins_over_the_count_of_all_and_what_was_set_later_over_both() {
        let mut config = NodeConfig::default();
        let none = DynamicConfigs::default();
        assert_eq!(ConnectionLimits::of(&config, &none).of_address(ip("1.2.3.4")), i32::MAX as u32);
        config.set("connections.per.ip.max", "3").expect("taken");
        config.set("connections.per.ip.overrides", "1.2.3.4:9").expect("taken");
        config.set("connections.rate.max", "50").expect("taken");
        let limits = ConnectionLimits::of(&config, &none);
        assert_eq!((limits.of_address(ip("1.2.3.4")), limits.of_address(ip("1.2.3.5"))), (9, 3));
        assert_eq!((limits.of_address(ip("::ffff:1.2.3.4")), limits.rate), (9, 50));
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let dynamic = DynamicConfigs {
            all: [set("max.connections.per.ip", "4"), set("max.connections.per.ip.overrides", "")].into(),
            node: [set("max.connection.creation.rate", "6")].into(),
        };
        let limits = ConnectionLimits::of(&config, &dynamic);
        assert_eq!((limits.of_address(ip("1.2.3.4")), limits.rate), (4, 6));
    }

    #[test]
    fn that_nobody_may_connect_is_refused() {
        let mut config = NodeConfig::default();
        config.set("connections.per.ip.max", "0").expect("taken alone");
        let error = config.check().expect_err("nobody").to_string();
        assert!(error.starts_with("max.connections.per.ip can be set to zero only if"), "{error}");
        config.set("connections.per.ip.overrides", "10.0.0.7:1").expect("taken");
        assert_eq!(config.check(), Ok(()));
    }
}

//! Settings of who may do what, by Kafka's names: which rules hold, and for whom none does. They are judged by the gateway.

/// Whether rules of who may do what are kept and hold.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Authorizer {
    /// Nobody is refused anything, and no rules are taken.
    #[default]
    None,
    /// Kafka's standard one: access control lists.
    Standard,
}

/// The words of an authoriser.
pub const AUTHORIZERS: &[&str] = &["none", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"];

impl Authorizer {
    /// The authoriser of a word.
    pub fn of(word: &str) -> Option<Authorizer> {
        match AUTHORIZERS.iter().position(|known| *known == word.trim())? {
            0 => Some(Authorizer::None),
            _ => Some(Authorizer::Standard),
        }
    }
}

impl std::fmt::Display for Authorizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(AUTHORIZERS[usize::from(*self == Authorizer::Standard)])
    }
}

/// Who a rule could be about, each as `Type:name`; separated by semicolons, for names may hold commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Principals(Vec<String>);

impl Principals {
    /// Reads a list; it may be empty.
    ///
    /// Errors: what is none of them.
    pub fn of(text: &str) -> Result<Principals, String> {
        let items = text.split(';').map(str::trim).filter(|item| !item.is_empty());
        let one = |item: &str| match item.split_once(':') {
            Some((kind, name)) if !kind.is_empty() && !name.is_empty() => Ok(item.to_owned()),
            _ => Err(format!("'{item}' is no principal, such as User:alice")),
        };
        items.map(one).collect::<Result<_, _>>().map(Principals)
    }

    /// Whether this one is among them.
    pub fn contain(&self, principal: &str) -> bool {
        self.0.iter().any(|known| known == principal)
    }
}

impl std::fmt::Display for Principals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join(";"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_authorizers_are_read_and_shown() {
        for word in AUTHORIZERS {
            assert_eq!(Authorizer::of(word).map(|a| a.to_string()).as_deref(), Some(*word));
        }
        assert_eq!(Authorizer::of("kafka.security.authorizer.AclAuthorizer"), None);
        assert_eq!(Authorizer::of("none"), Some(Authorizer::None));
    }

    #[test]
    fn principals_are_separated_by_semicolons() {
        let two = Principals::of(" User:CN=a,O=b ;User:bob;").expect("read");
        assert!(two.contain("User:CN=a,O=b") && two.contain("User:bob") && !two.contain("User:CN=a"));
        assert_eq!(two.to_string(), "User:CN=a,O=b;User:bob");
        assert_eq!(Principals::of(""), Ok(Principals::default()));
        assert!(Principals::of("bob").is_err() && Principals::of("User:").is_err());
    }
}

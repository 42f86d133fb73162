# Starts Valkey with a default user that has this password and only the rights that a sidecar
# needs: no command that changes the server's settings or deletes keys. The user is read from
# standard input, because arguments are visible to others and the file system is read-only.
set -eu
password=$(cat /run/extproc-shared-state/password)
hash=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
exec valkey-server /etc/valkey/valkey.conf - <<EOF
user default reset on #$hash ~* -@all +ping +select +client|setname +client|setinfo +time +xadd +xread +xtrim +mget +set
EOF

bash /opt/start.sh
